"""One error type for malformed payloads, independent of the decoder.

msgspec raises more than its own errors: RecursionError for deep nesting, UnicodeDecodeError and OverflowError in
undocumented places. Each format wraps its decoder here, so a peer's bytes cannot raise another type. Decoders of files
have their own errors, which name the file.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec

__all__ = ["LinkError", "Payload", "Unreadable", "decoding_fault", "plain_text", "strictly"]

TEXT_MAX = 200  # characters of a reason in a log line: a peer may have written it

T = TypeVar("T")
Payload: TypeAlias = bytes | bytearray | memoryview


class LinkError(Exception):
    """The peer or the network violated the link protocol: close the connection, keep the process."""


class Unreadable(LinkError, msgspec.ValidationError, ValueError):
    """A payload does not match its frame kind: the incarnation that wrote it is fenced."""


def strictly(decode: Callable[[Payload], T], what: str) -> Callable[[Payload], T]:
    """Return a decoder that raises only ``Unreadable``.

    Args:
        decode: May raise any Exception.
        what: Name of the format, for the error text.
    """

    def read(payload: Payload) -> T:
        try:
            return decode(payload)
        except Exception as error:  # MemoryError and RecursionError among them: the payload is the cause
            raise Unreadable(f"unreadable {what}: {decoding_fault(error)}") from None

    return read


def decoding_fault(error: Exception) -> str:
    """Return a printable description of a decoding error."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, UnicodeError):
        return "text that is not UTF-8"
    return plain_text(str(error) or type(error).__name__)


def plain_text(text: str) -> str:
    """Return the first ``TEXT_MAX`` characters of untrusted text, with unprintable ones replaced, for one log line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:TEXT_MAX])
