"""Types of settings that name an HTTP server: masked as text in every format (``conf/urls.py``).

Only ``plain`` is the whole URL, for the library that connects. Such a setting may name a file of mode 0600
(``file:PATH``) with the URL; then the URL's path is masked too.
"""

import re
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic_core import core_schema

from conf.errors import ExitCode, UserError
from conf.private_files import read_secret
from conf.urls import HOST, MASK, shown_url

__all__ = ["HttpUrl", "KeySetUrl", "ProtectedUrl", "Url"]

URL_CHARS_MAX = 2048
FILE = "file:"
LOOPBACK = r"http://(?:127\.0\.0\.1|\[::1\]|localhost)(?::\d+)?(?:[/?#]\S*)?"


class Url:
    """The value of a setting that names a server: masked as text, compared and hashed by the whole URL.

    Args:
        plain: The URL, or ``file:PATH``; "" for none.
        from_file: It was read from a file.
    """

    __slots__ = ("_from_file", "plain")

    FORM: ClassVar[re.Pattern[str]]
    MEANING: ClassVar[str]

    def __init__(self, plain: str = "", from_file: bool = False) -> None:
        self.plain = plain
        self._from_file = from_file

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.parse)

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the value of a setting.

        Raises:
            ValueError: It is not a URL of this kind; the text does not repeat it.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or len(value) > URL_CHARS_MAX:
            raise ValueError(f"must be a text of at most {URL_CHARS_MAX} characters")
        url = cls(value)
        if value and url.file is None and not cls._fits(value):
            raise ValueError(f"must be {cls.MEANING}, or file:PATH")
        return url

    @classmethod
    def _fits(cls, value: str) -> bool:
        return bool(cls.FORM.fullmatch(value)) and bool(HOST.fullmatch(_host_of(value)))

    @property
    def file(self) -> Path | None:
        """The file that has the URL."""
        named = self.plain.removeprefix(FILE)
        return Path(named) if named not in ("", self.plain) and not named.startswith("//") else None

    @property
    def may_be_https(self) -> bool:
        """Whether the URL may begin with https://; its file is not read."""
        return self.file is not None or self.plain.startswith("https://")

    def replaced(self, plain: str) -> Self:
        """Return another URL with the same masking."""
        return type(self)(plain, self._from_file)

    def read(self, setting: str) -> Self:
        """Return the URL itself, read from its file if the setting names one.

        Args:
            setting: Its name, for errors.

        Raises:
            UserError: The file is accessible to others, cannot be read, or has no URL of this kind.
        """
        path = self.file
        if path is None:
            return self
        try:
            text = read_secret(setting, path).decode().strip()
        except UnicodeDecodeError:
            text = ""
        if len(text) > URL_CHARS_MAX or not self._fits(text):
            raise UserError(f"{setting}: {path}: the content must be {self.MEANING}", ExitCode.USAGE)
        return type(self)(text, from_file=True)

    def __str__(self) -> str:
        if self.file is not None:
            return self.plain
        shown = shown_url(self.plain)
        if not self._from_file:
            return shown
        scheme, _, rest = shown.partition("://")
        host, slash, _ = re.sub(r"[?#].*", "/", rest).partition("/")
        return f"{scheme}://{host}{slash and '/' + MASK}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __bool__(self) -> bool:
        return bool(self.plain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and other.plain == self.plain

    def __hash__(self) -> int:
        return hash(self.plain)


class HttpUrl(Url):
    """http:// or https://."""

    __slots__ = ()

    FORM = re.compile(r"https?://[^\s@/?#]+(?:[/?#]\S*)?")
    MEANING = "http:// or https:// with a host, and no user name"


class ProtectedUrl(Url):
    """https://, or http:// on loopback: for requests with passwords."""

    __slots__ = ()

    FORM = re.compile(rf"https://[^\s@/?#]+(?:[/?#]\S*)?|{LOOPBACK}")
    MEANING = "https:// with a host, or http:// on loopback, and no user name"


class KeySetUrl(Url):
    """https://, or http:// on loopback: for keys, optionally with user name and password."""

    __slots__ = ()

    FORM = re.compile(rf"https://[^\s/?#]+(?:[/?#]\S*)?|{LOOPBACK}")
    MEANING = "https:// with a host, or http:// on loopback"


def _host_of(url: str) -> str:
    return re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
