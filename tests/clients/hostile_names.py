"""Hostile names: of a user, of a client identifier, in a certificate."""

__all__ = ["HOSTILE_NAMES", "LOOK_ALIKES"]

HOSTILE_NAMES: dict[str, str] = {
    "plus": "+",
    "hash": "#",
    "plus among letters": "a+b",
    "two levels": "victim/x",
    "empty levels": "//",
    "parent folder": "../../etc/passwd",
    "dollar": "$SYS",
    "share": "$share/g/#",
    "placeholder": "%u",
    "other placeholder": "${clientid}",
    "NUL": "victim\0",
    "line end": 'x\n{"ts": "2026-01-01", "level": "info", "event": "all is well"}',
    "carriage return": "x\r2026 all is well",
    "escape sequence": "x\x1b[2J\x1b]0;title\x07",
    "C1 control": "x\x9b31m",
    "backspace": "x\x08\x08y",
    "line separator": "x\u2028y",
    "right to left": "x\u202egnol",
    "zero width": "vic\u200btim",
    "byte order mark": "\ufeffvictim",
    "no character": "x\uffff",
    "private use": "x\ue000",
    "format string": "%s%n%d{0}{x!r}",
    "quotes": "'\"\\`;--",
    "regular expression": ".*|^(a+)+$",
    "JSON": '","user":"victim',
    "TOML": 'x"]\n[roles.x]\npublish = ["#"]',
    "HTML": "<script>alert(1)</script>",
    "65 535 bytes": "x" * 65_535,
    "65 535 bytes of accents": "e\u0301" * 21_845,
}
LOOK_ALIKES = (
    "victi\u043c",  # the last letter is Cyrillic
    "VICTIM",
    "victim ",
    " victim",
    "victim\u200b",
    "\uff56ictim",  # the first letter is a wide one
    "victim\u0301",
    "vict\u0131m",
    "victim.",
)
