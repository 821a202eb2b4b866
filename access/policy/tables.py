"""The tables of the policy, stored encoded: 200 000 users cost a router only their bytes, without garbage-collector
load.

A table tracks the sum of its bytes, so the policy's bounds are checked without a scan. A table of expiring records
keeps them ordered by expiry, so expired ones are found without a scan.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from access.policy.records import Ban, Revoked, RoleRecord, Token, User, UserGroup, ban_key, revoked_key
from wire.decoding import Payload

__all__ = ["R", "Table", "bans_table", "groups_table", "revoked_table", "roles_table", "tokens_table", "users_table"]

R = TypeVar("R", bound=msgspec.Struct)


class Table(Generic[R]):
    """Records by key.

    Attributes:
        octets: Sum of the encoded records and of their keys.
    """

    def __init__(
        self, decode: Callable[[Payload], R], key_of: Callable[[R], str], end_of: Callable[[R], float] | None = None
    ) -> None:
        self._decode = decode
        self._key_of = key_of
        self._end_of = end_of  # seconds since the epoch, 0: no expiry
        self._encoded: dict[str, bytes] = {}
        self._sorted: list[str] | None = None  # sorted keys, created on first use
        self._ends: list[tuple[float, str]] = []  # expiries, negated: the next one is last
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
        """Yield all records, decoded one by one."""
        return map(self._decode, self._encoded.values())

    def names(self, after: str, count: int) -> list[str]:
        """Return up to ``count`` keys after one, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._encoded)
        at = bisect_right(self._sorted, after)
        return self._sorted[at : at + count]

    def ended(self, by_utc: float, count: int) -> list[str]:
        """Return keys of up to ``count`` records that expired by a time, earliest first."""
        return [key for end, key in self._ends[: -count - 1 : -1] if -end <= by_utc]

    def put(self, record: R) -> None:
        """Add or replace a record."""
        key = self._key_of(record)
        if self._sorted is not None and key not in self._encoded:
            insort(self._sorted, key)
        self._drop(key)
        self._keep(key, record)
        if self._end_of is not None and (end := self._end_of(record)):
            insort(self._ends, (-end, key))

    def _keep(self, key: str, record: R) -> None:
        data = msgspec.msgpack.encode(record)
        self._encoded[key] = data
        self.octets += len(data) + len(key.encode())

    def remove(self, key: str) -> None:
        """Remove a record; a missing one is ignored."""
        if self._drop(key) and self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, key)]

    def _drop(self, key: str) -> bool:
        """Remove the record of a key; return whether there was one."""
        data = self._encoded.pop(key, None)
        if data is None:
            return False
        self.octets -= len(data) + len(key.encode())
        if self._end_of is not None and (end := self._end_of(self._decode(data))):
            del self._ends[bisect_left(self._ends, (-end, key))]
        return True

    def octets_of(self, key: str) -> int:
        """Return the size of a key's record in bytes, 0 if there is none."""
        data = self._encoded.get(key)
        return 0 if data is None else len(data) + len(key.encode())

    def encoded(self) -> list[bytes]:
        """Return the encoded records in a new list."""
        return list(self._encoded.values())

    def raw(self) -> list[msgspec.Raw]:
        """Return the encoded records for a snapshot or for pages."""
        return [msgspec.Raw(data) for data in self._encoded.values()]

    def add(self, raw: msgspec.Raw) -> R:
        """Add one record of a snapshot, and return it.

        Raises:
            ValueError: It is invalid, or its key exists (msgspec.ValidationError is a subclass).
        """
        record = self._decode(raw)
        if self._key_of(record) in self._encoded:
            raise ValueError("two records of one key")
        self.put(record)
        return record

    def load(self, records: list[msgspec.Raw]) -> None:
        """Replace all records by those of a snapshot.

        Raises:
            ValueError: A record is invalid, or a key repeats (msgspec.ValidationError is a subclass).
        """
        self._encoded.clear()
        self._sorted = None
        self._ends.clear()
        self.octets = 0
        end_of, self._end_of = self._end_of, None  # sort once at the end instead of inserting each
        try:
            read = [self.add(raw) for raw in records]
        finally:
            self._end_of = end_of
        if end_of is not None:
            self._ends = sorted((-end, self._key_of(record)) for record in read if (end := end_of(record)))


def _ban_key(ban: Ban) -> str:
    return ban_key(ban.kind, ban.value)


def _revoked_key(revoked: Revoked) -> str:
    return revoked_key(revoked.kind, revoked.issuer, revoked.value)


def users_table() -> Table[User]:
    """Return an empty table of users."""
    return Table(msgspec.msgpack.Decoder(User).decode, lambda user: user.name)


def groups_table() -> Table[UserGroup]:
    """Return an empty table of groups."""
    return Table(msgspec.msgpack.Decoder(UserGroup).decode, lambda group: group.name)


def roles_table() -> Table[RoleRecord]:
    """Return an empty table of roles."""
    return Table(msgspec.msgpack.Decoder(RoleRecord).decode, lambda role: role.name)


def bans_table(*, with_ends: bool = False) -> Table[Ban]:
    """Return an empty table of bans.

    Args:
        with_ends: Track expiries.
    """
    return Table(msgspec.msgpack.Decoder(Ban).decode, _ban_key, _end_of if with_ends else None)


def revoked_table(*, with_ends: bool = False) -> Table[Revoked]:
    """Return an empty table of revocations; ``with_ends`` as with bans."""
    return Table(msgspec.msgpack.Decoder(Revoked).decode, _revoked_key, _end_of if with_ends else None)


def tokens_table() -> Table[Token]:
    """Return an empty table of operators' tokens, with expiries."""
    return Table(msgspec.msgpack.Decoder(Token).decode, lambda token: token.name, _end_of)


def _end_of(record: Ban | Revoked | Token) -> float:
    return record.until_utc
