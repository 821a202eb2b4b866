"""Cursors: the position where the next page of a list starts, as text for the operator.

A cursor is base64url of msgpack: kind of row, digest of the query, cluster, next node, that node's incarnation, and the
node's own position. It is not a secret and grants nothing: each query is authorized, and a node validates its own
position. A cursor of another query or cluster is refused, because its rows would differ from those of the earlier
pages.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from conf.errors import ExitCode, UserError
from wire.messages.ranges import U64, NodeName, SomeNode, Word

__all__ = ["CURSOR_MAX", "CursorRefused", "Position", "digest_of", "read_cursor", "write_cursor"]

PLACE_MAX = 200_000  # characters of a node's position
CURSOR_MAX = 1024 * 1024  # characters: at most four bytes per character of a position, and a third more for base64
DIGEST_BYTES = 8


class Position(NamedTuple):
    """The position from which a list resumes."""

    node: str
    incarnation: int  # 0: not known; ``after`` belongs to it
    after: str  # the node's own position; "": its beginning


class CursorRefused(UserError):
    """An invalid cursor; ``code`` is the same in the CLI and the HTTP API."""

    code = "stale_cursor"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: repeat the query without it", ExitCode.USAGE)


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    what: Word
    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    cluster: SomeNode
    node: NodeName
    incarnation: U64
    after: Annotated[str, msgspec.Meta(max_length=PLACE_MAX)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Cursor).decode


def digest_of(what: str, where: Mapping[str, str], nodes: Sequence[str] = ()) -> bytes:
    """Return the digest of a query: kind of row, filters, and nodes (none: all)."""
    query = _encode((what, sorted(where.items()), sorted(nodes)))
    return hashlib.sha256(query).digest()[:DIGEST_BYTES]


def write_cursor(cluster: str, what: str, digest: bytes, position: Position) -> str:
    """Return a cursor as text."""
    cursor = _Cursor(what, digest, cluster, position.node, position.incarnation, position.after)
    return base64.urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def read_cursor(text: str, cluster: str, what: str, digest: bytes) -> Position:
    """Return the position of a cursor.

    Raises:
        CursorRefused: The text is not a cursor, or belongs to another query or cluster.
    """
    try:
        if len(text) > CURSOR_MAX:
            raise ValueError("too long")
        cursor = _decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise CursorRefused("this is not a cursor of a list") from None
    if cursor.cluster != cluster:
        raise CursorRefused(f"the cursor belongs to cluster {cursor.cluster!r}, this is cluster {cluster!r}")
    if cursor.what != what or cursor.digest != digest:
        raise CursorRefused("the cursor belongs to another query or other filters")
    return Position(cursor.node, cursor.incarnation, cursor.after)
