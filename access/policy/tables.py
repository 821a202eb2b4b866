"""The tables of the policy, kept encoded: 200 000 users cost a router their bytes, and its garbage collector nothing.

A table knows the sum of its bytes, so the bounds of the whole policy are judged without a walk over it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from access.policy.records import Ban, Group, Revoked, Role, User, ban_key, revoked_key
from wire.decoding import Payload

__all__ = ["R", "Table", "bans_table", "groups_table", "revoked_table", "roles_table", "users_table"]

R = TypeVar("R", bound=msgspec.Struct)


class Table(Generic[R]):
    """Records by key.

    Attributes:
        octets: Sum of the encoded records and of their keys.
    """

    def __init__(self, decode: Callable[[Payload], R], key_of: Callable[[R], str]) -> None:
        self._decode = decode
        self._key_of = key_of
        self._encoded: dict[str, bytes] = {}
        self._sorted: list[str] | None = None  # keys in order, once somebody has asked for them
        self.octets = 0

    def __len__(self) -> int:
        return len(self._encoded)

    def __contains__(self, key: object) -> bool:
        return key in self._encoded

    def get(self, key: str) -> R | None:
        """Return the record of a key, None if there is none."""
        data = self._encoded.get(key)
        return None if data is None else self._decode(data)

    def records(self) -> Iterator[R]:
        """Yield all records, decoded one after the other."""
        return map(self._decode, self._encoded.values())

    def keys(self) -> Iterator[str]:
        """Yield all keys, those of the oldest records first."""
        return iter(self._encoded)

    def names(self, after: str, count: int) -> list[str]:
        """Return up to ``count`` keys behind one, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._encoded)
        at = bisect_right(self._sorted, after)
        return self._sorted[at : at + count]

    def put(self, record: R) -> None:
        """Add a record, or replace the one of its key."""
        key = self._key_of(record)
        data = msgspec.msgpack.encode(record)
        if self._sorted is not None and key not in self._encoded:
            insort(self._sorted, key)
        before = self._encoded.pop(key, None)
        if before is not None:
            self.octets -= len(before) + len(key.encode())
        self._encoded[key] = data
        self.octets += len(data) + len(key.encode())

    def remove(self, key: str) -> None:
        """Remove a record; one that is not there is passed by."""
        data = self._encoded.pop(key, None)
        if data is not None:
            self.octets -= len(data) + len(key.encode())
            if self._sorted is not None:
                del self._sorted[bisect_left(self._sorted, key)]

    def octets_of(self, key: str) -> int:
        """Return the bytes that the record of a key takes, 0 if there is none."""
        data = self._encoded.get(key)
        return 0 if data is None else len(data) + len(key.encode())

    def encoded(self) -> list[bytes]:
        """Return the records as they are kept; the list is the caller's."""
        return list(self._encoded.values())

    def raw(self) -> list[msgspec.Raw]:
        """Return the records as they are encoded, for a snapshot or for pages."""
        return [msgspec.Raw(data) for data in self._encoded.values()]

    def add(self, raw: msgspec.Raw) -> R:
        """Add one record of a snapshot, and return it.

        Raises:
            ValueError: It is none, or its key has a record (msgspec.ValidationError is one).
        """
        record = self._decode(raw)
        if self._key_of(record) in self._encoded:
            raise ValueError("two records of one key")
        self.put(record)
        return record

    def load(self, records: list[msgspec.Raw]) -> None:
        """Replace all records by those of a snapshot.

        Raises:
            ValueError: A record is none, or two have one key (msgspec.ValidationError is one).
        """
        self._encoded.clear()
        self._sorted = None
        self.octets = 0
        for raw in records:
            self.add(raw)


def _ban_key(ban: Ban) -> str:
    return ban_key(ban.kind, ban.value)


def _revoked_key(revoked: Revoked) -> str:
    return revoked_key(revoked.kind, revoked.issuer, revoked.value)


def users_table() -> Table[User]:
    """Return an empty table of users."""
    return Table(msgspec.msgpack.Decoder(User).decode, lambda user: user.name)


def groups_table() -> Table[Group]:
    """Return an empty table of groups."""
    return Table(msgspec.msgpack.Decoder(Group).decode, lambda group: group.name)


def roles_table() -> Table[Role]:
    """Return an empty table of roles."""
    return Table(msgspec.msgpack.Decoder(Role).decode, lambda role: role.name)


def bans_table() -> Table[Ban]:
    """Return an empty table of bans."""
    return Table(msgspec.msgpack.Decoder(Ban).decode, _ban_key)


def revoked_table() -> Table[Revoked]:
    """Return an empty table of revocations."""
    return Table(msgspec.msgpack.Decoder(Revoked).decode, _revoked_key)
