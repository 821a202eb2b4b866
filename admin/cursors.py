"""Cursors: where a list goes on, as text that an operator hands back.

A cursor is base64url of msgpack: what is listed, a digest of the question, the cluster, the node to go on with, that
node's incarnation, and the node's own position. It is no secret and no right: each question is judged by itself, and a
node checks its own position. A cursor of another question or cluster is refused, because the rows behind it would be
others than those that the caller counts on.
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
CURSOR_MAX = 1024 * 1024  # characters: four bytes for each of a position at worst, and a third more for base64
DIGEST_BYTES = 8


class Position(NamedTuple):
    """The place from which a walk goes on."""

    node: str
    incarnation: int  # 0: not known; the one that ``after`` belongs to
    after: str  # the node's own; "": from its beginning


class CursorRefused(UserError):
    """A cursor that cannot be followed; ``code`` is the same word in every door."""

    code = "stale_cursor"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}: ask again without it", ExitCode.USAGE)


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
    """Return the digest of a question: what is listed, which rows, and of which nodes (none: of all)."""
    asked = _encode((what, sorted(where.items()), sorted(nodes)))
    return hashlib.sha256(asked).digest()[:DIGEST_BYTES]


def write_cursor(cluster: str, what: str, digest: bytes, position: Position) -> str:
    """Return a cursor as text."""
    cursor = _Cursor(what, digest, cluster, position.node, position.incarnation, position.after)
    return base64.urlsafe_b64encode(_encode(cursor)).decode().rstrip("=")


def read_cursor(text: str, cluster: str, what: str, digest: bytes) -> Position:
    """Return where to go on.

    Raises:
        CursorRefused: It is none, or one of another question or cluster.
    """
    try:
        if len(text) > CURSOR_MAX:
            raise ValueError("too long")
        cursor = _decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise CursorRefused("this is no cursor that a list has given") from None
    if cursor.cluster != cluster:
        raise CursorRefused(f"the cursor is of cluster {cursor.cluster!r}, this one is {cluster!r}")
    if cursor.what != what or cursor.digest != digest:
        raise CursorRefused("the cursor is of another question, or of other filters")
    return Position(cursor.node, cursor.incarnation, cursor.after)
