"""Masks a bundle: secrets in any form, and client names if pseudonyms are requested.

Secrets are found by context (a setting's name, a URL, PEM), by form (tokens, long keys in hex or base64), and by the
content of this host's key files. Pseudonyms are keyed hashes; the key exists for one bundle only. Equal names are equal
within a bundle and cannot be compared with another. Free text keeps node names, plain numbers, and words of StrataMQ's
source that are not a name in any field; the rest is hashed.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from conf.secret_names import ABOUT_SECRETS, is_secret_name
from conf.urls import MASK, mask_urls

__all__ = ["Hider", "own_words", "secrets_of"]

HIDDEN = MASK
SENTENCE = (  # words that may follow the name of a secret in a sentence
    *("a", "an", "and", "are", "as", "at", "by", "differs?", "does", "for", "from", "has", "have", "in", "is", "it"),
    *("may", "must", "needs", "not", "of", "on", "or", "so", "than", "that", "the", "then", "to", "was", "which"),
    *("with", "without", "change[ds]?", "checks?", "file", "files", "hash", "hashes", "policy", "records?", "steps?"),
)
SECRET_FORMS = re.compile(
    r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)"
    r"|smq_[A-Za-z0-9_-]{8,}"  # tokens of operators
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"  # JWT
    r"|(?i:\bbearer)\s+[A-Za-z0-9+/=_.~-]+"
    r"|(?i:\bbasic)\s+(?=[a-z]*[A-Z0-9+/=])[A-Za-z0-9+/=]+"  # base64: no word of a sentence
    r"|\$(?!share\$|SYS\$)[A-Za-z0-9-]{1,32}\$[^\s'\"]+"  # records of passwords: $argon2id$..., $6$salt$hash
    r"|(?i:SCRAM-SHA-(?:1|256|512))\$[^\s'\"]+"
    r"|(?<![A-Za-z0-9])[0-9A-Fa-f]{32,}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9+/_-])(?=[A-Za-z0-9+/_-]*[0-9])(?=[A-Za-z0-9+/_-]*[a-z])(?=[A-Za-z0-9+/_-]*[A-Z])"
    r"[A-Za-z0-9+/_-]{32,512}={0,2}",
    re.DOTALL,
)
SOUND = "passw(?:or)?d|passphrase|passwd|secret|token|psk|credential|api[-_]?key|authorization"
VALUE = r"('[^']*'|\"[^\"]*\"|[^\s,;]+)"
IN_TEXT = re.compile(
    rf"(?i)(?<![a-z_-])((?:--)?[a-z_-]{{0,64}}(?:{SOUND})[a-z_-]{{0,64}}['\"]?)(\s*[=:]\s*|\s+(?==)){VALUE}"
)
# A word after the name of a secret is its value, unless it continues a sentence.
AFTER_NAME = re.compile(
    rf"(?i)(?<![a-z0-9_/.-])(--[a-z-]{{0,64}}(?:{SOUND})|passw(?:or)?d|passwd|passphrase|secret|psk|api[-_]?key)(\s+)"
    rf"(?!(?:{'|'.join(SENTENCE)})\b(?!\d)){VALUE}"
)
QUERY = re.compile(r"(?<=[?&])([^\s=&#?\"']{1,256})=[^\s&#\"']*")  # of a URL without its beginning
NAMES = frozenset(  # fields that hold a personal name or an address
    (
        *("client_id", "last_client_id", "user", "username", "actor", "certificate", "publisher"),
        *("topic", "last_topic", "response_topic", "will_topic", "filter"),
        *("address", "listener_address", "peer", "ip", "ip_port", "host", "bind", "advertise", "metrics"),
    )
)
WORD = re.compile(r"[^\s'\"=,;()\[\]{}]+")
ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*")
PART = re.compile(r"[^\W_]+")
ESCAPED = re.compile(r"%[0-9A-F]{2}")
MEASURE = re.compile(r"[-+]?\d+(?:\.\d+)?(?:%|s|ms|us|h|min|B|KiB|MiB|GiB)?")
KNOWN_MIN = 6  # bytes: a shorter secret would match everywhere
PSEUDONYM_HEX = 12


def secrets_of(paths: Iterable[Path], bytes_max: int = 1024 * 1024) -> set[bytes]:
    """Return the content of key and password files: their lines, and the lines decoded from base64."""
    found: set[bytes] = set()
    for path in paths:
        try:
            if path.stat().st_size > bytes_max:
                continue
            text = path.read_bytes()
        except OSError:
            continue
        for line in text.splitlines():
            for part in {line.strip(), *line.strip().split(b":")}:
                if len(part) >= KNOWN_MIN and not part.startswith(b"-----"):
                    found.add(part)
    return found | {raw for raw in map(_decoded, found) if len(raw) >= KNOWN_MIN}


def _is_about(name: str) -> bool:
    return name.lower().rpartition("_")[2] in ABOUT_SECRETS


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def own_words(root: Path, packages: Iterable[str]) -> frozenset[str]:
    """Return every word in the Python sources of packages."""
    words: set[str] = set()
    for package in packages:
        for path in (root / package).rglob("*.py"):
            words.update(PART.findall(path.read_text(errors="replace").replace("_", " ").lower()))
    return frozenset(word for word in words if word.isalpha())


class Hider:
    """Masks secrets and names in values.

    Args:
        known: Secrets of this host.
        words: Words of free text to keep; None: names are shown.
        nodes: Names to keep.
    """

    def __init__(self, known: Iterable[bytes], words: frozenset[str] | None = None, nodes: Iterable[str] = ()) -> None:
        self._known = _forms(known)
        self._words = words
        self._nodes = frozenset(nodes)
        self._names: set[str] = set()  # names to hash wherever they occur
        self._key = secrets.token_bytes(32)

    def learn(self, value: Any, name: str = "") -> None:
        """Record names in name fields, to hash them in free text too."""
        if isinstance(value, Mapping):
            for key, one in value.items():
                self.learn(one, str(key))
        elif isinstance(value, list | tuple):
            for one in value:
                self.learn(one, name)
        elif isinstance(value, str) and name in NAMES:
            self._names |= {value, *value.split("/")} - self._nodes

    def hide(self, value: Any, name: str = "") -> Any:
        """Return the masked value, recursively for mappings and lists."""
        if isinstance(value, Mapping):
            return {self._key_of(key): self.hide(one, str(key)) for key, one in self._named(value).items()}
        if isinstance(value, list | tuple):
            return [self.hide(one, name) for one in value]
        if isinstance(value, bytes):
            return HIDDEN
        if not isinstance(value, str):
            return value
        if is_secret_name(name) and value not in ("", "None"):
            return HIDDEN
        return self._text(value, name)

    def _named(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Mask the value of a setting's row by the setting's name."""
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            masked = self.hide(value["value"], value["name"])
            return {**value, "value": masked}
        return value

    def _key_of(self, key: object) -> str:
        return self._text(str(key), "")

    def _text(self, text: str, name: str) -> str:
        for find in self._known:
            text = find(text)
        text = QUERY.sub(rf"\1={HIDDEN}", SECRET_FORMS.sub(HIDDEN, mask_urls(text)))
        for pattern in (IN_TEXT, AFTER_NAME):
            text = pattern.sub(lambda match: match[0] if _is_about(match[1]) else match[1] + match[2] + HIDDEN, text)
        if self._words is None:
            return text
        if name.rpartition(".")[2] in NAMES:
            return self._pseudonym(text) if text and text not in self._nodes else text
        return WORD.sub(lambda match: self._word(match[0]), text)

    def _word(self, word: str) -> str:
        """Return a word of free text, or its hash if it may be a name or an address."""
        assert self._words is not None
        core = word.rstrip(".:?!")
        if not core or core in self._nodes or core == HIDDEN:
            return word
        parts = PART.findall(core.replace("_", " "))
        ours = all(part.isdecimal() for part in parts) or all(part.lower() in self._words for part in parts)
        if core not in self._names and (MEASURE.fullmatch(core) or (ours and not ADDRESS.search(core))):
            return word
        return self._pseudonym(core) + word[len(core) :]

    def _pseudonym(self, name: str) -> str:
        return "~" + hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:PSEUDONYM_HEX]


def _in_urls(secret: bytes) -> set[str]:
    """Return a secret in URL encodings, in upper and lower case."""
    found = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return found | {ESCAPED.sub(lambda match: match[0].lower(), one) for one in found}


def _forms(known: Iterable[bytes]) -> list[Callable[[str], str]]:
    """Return replacers of secrets: plain, escaped, in URLs, hex, and base64 at each alignment."""
    forms: set[str] = set()
    for secret in known:
        plain = secret.decode("utf-8", "replace")
        forms |= {secret.hex(), secret.hex().upper(), *_in_urls(secret)}
        if "\ufffd" not in plain:
            forms |= {plain, json.dumps(plain)[1:-1], repr(plain)[1:-1]}
        for shift in range(3):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                whole = encode(b"\0" * shift + secret).rstrip(b"=").decode()
                forms.add(whole[(shift * 8 + 5) // 6 : len(whole) - 1])
    usable = sorted((form for form in forms if len(form) >= KNOWN_MIN), key=len, reverse=True)
    if not usable:
        return []
    pattern = re.compile("|".join(map(re.escape, usable)))
    return [lambda text: pattern.sub(HIDDEN, text)]
