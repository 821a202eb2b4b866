"""One error for a payload that is not what its kind says, whatever went wrong inside a decoder.

msgspec raises more than its own errors: RecursionError for what is nested too deep, UnicodeDecodeError and
OverflowError from places that its documentation does not name. Whoever has a format wraps its decoder here, once, so
that no bytes of a peer can raise anything else. Files have errors of their own, which name the file.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

__all__ = ["LinkError", "Payload", "Unreadable", "decoding_fault", "plain_text", "strictly"]

TEXT_MAX = 200  # characters of a reason in a log line: a peer may have written it

T = TypeVar("T")
Payload: TypeAlias = bytes | bytearray | memoryview


class LinkError(Exception):
    """The peer, or what lies between, broke the rules of a link: close the connection, keep the process."""


class Unreadable(LinkError, msgspec.ValidationError, ValueError):
    """A payload is not what its kind says: the incarnation that wrote it is not listened to any more."""


def strictly(decode: Callable[[Payload], T], what: str) -> Callable[[Payload], T]:
    """Return a decoder that raises Unreadable and nothing else.

    Args:
        decode: May raise any Exception.
        what: Name of the format, for the reason.
    """

    def read(payload: Payload) -> T:
        try:
            return decode(payload)
        except Exception as error:  # MemoryError and RecursionError among them: what raises is in the payload
            raise Unreadable(f"unreadable {what}: {decoding_fault(error)}") from None

    return read


def decoding_fault(error: Exception) -> str:
    """Return in plain text what is wrong with bytes that a decoder refused."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, UnicodeError):
        return "text that is not UTF-8"
    return plain_text(str(error) or type(error).__name__)


def plain_text(text: str) -> str:
    """Return the beginning of a text that a peer may have written, fit for one line of a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:TEXT_MAX])
