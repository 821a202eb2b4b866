"""The step ``password``: checks user name and password against records of a file or of the cluster.

Unknown names cost the same hash as wrong passwords, and after a file step also the cost of the cluster's users.
Successful logins are cached for a minute under a key that does not reveal passwords in a memory image; failed ones are
not cached. The shell bounds the queue of hashes.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from access.identity.passwords import (
    OWN_DIGEST_BYTES,
    OWN_LANES,
    OWN_MEMORY_KIB,
    OWN_PASSES,
    OWN_SALT_BYTES,
    HashJob,
    HashKind,
    PasswordRecord,
    encode_record,
)
from access.identity.principal import (
    Allow,
    Answer,
    Credentials,
    Deny,
    Failed,
    Job,
    Pass,
    Principal,
    TimePoint,
    Wait,
    name_fault,
)
from mqtt.reasons import ReasonCode

__all__ = [
    "USER_NAME_MAX",
    "FetchUser",
    "FileUsers",
    "KnownLogins",
    "PasswordStep",
    "RouterUsers",
    "UserFound",
    "UserRecord",
]

REMEMBERED_S = 60.0
REMEMBERED_MAX = 10_000  # logins; the oldest is evicted
USER_NAME_MAX = 256  # characters of a name in a request to the routers; no user of the cluster has more
OWN = PasswordRecord(
    HashKind.ARGON2ID, bytes(OWN_SALT_BYTES), bytes(OWN_DIGEST_BYTES), OWN_PASSES, OWN_MEMORY_KIB, OWN_LANES
)


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user: password record and SCRAM verifier, if any, and the rights of the name."""

    password: PasswordRecord | None
    version: int = 0
    made: int = 0
    since: int = 0
    disabled: bool = False
    roles: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    own_roles: tuple[str, ...] = ()
    own_limits: Mapping[str, int] = field(default_factory=dict)
    verifier: str = field(default="", repr=False)

    def principal(self, user: str, method: str, client_id: str, data: bytes = b"") -> Principal:
        """Return the principal of a client that authenticated as this user."""
        return Principal(
            user,
            method,
            client_id,
            self.roles,
            attributes=self.attributes,
            limits=self.limits,
            data=data,
            made=self.made,
            since=self.since,
            groups=self.groups,
            own_roles=self.own_roles,
            own_limits=self.own_limits,
        )


@dataclass(frozen=True, slots=True)
class FetchUser:
    """Request a user from any router; the result is a ``UserFound``, or any other object if none answered."""

    user: str
    kind: str = field(default="user", init=False)


@dataclass(frozen=True, slots=True)
class UserFound:
    """The routers' response; None for an unknown name."""

    user: str
    record: UserRecord | None


class UserSource(Protocol):
    """Source of users."""

    def find(self, name: str) -> UserRecord | FetchUser | None:
        """Return a user's record, None for an unknown name, or the request to send."""

    def decoy(self, name: str) -> PasswordRecord:
        """Return the dummy record for an unknown name; always the same for a name."""


class FileUsers:
    """Users of a password file, with the rights that settings give their names.

    Args:
        records: From the file.
        secret: Of this process, 16 bytes or more.
    """

    def __init__(self, records: Mapping[str, PasswordRecord], secret: bytes) -> None:
        self._records = records
        self._secret = secret
        # Formats in a file differ in hash time by a factor of 10 000: unknown names get the same mixture.
        self._shapes = list(records.values()) or [OWN]

    def find(self, name: str) -> UserRecord | None:
        """Return a user's record."""
        record = self._records.get(name)
        return None if record is None else UserRecord(record)

    def decoy(self, name: str) -> PasswordRecord:
        """Return a record with the cost of some user in the file, and random salt and hash."""
        drawn = hmac.digest(self._secret, b"decoy" + name.encode(), "sha512")
        return _dummy_record(self._shapes[int.from_bytes(drawn[:8], "big") % len(self._shapes)], drawn)


class RouterUsers:
    """Users of the cluster, requested by name at login."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def find(self, name: str) -> FetchUser | None:
        """Return the request for a name; an overlong one is unknown, and cannot be sent."""
        return FetchUser(name) if len(name) <= USER_NAME_MAX else None

    def decoy(self, name: str) -> PasswordRecord:
        """Return a record with the cluster's parameters."""
        return _dummy_record(OWN, hmac.digest(self._secret, b"decoy" + name.encode(), "sha512"))


def _dummy_record(shape: PasswordRecord, drawn: bytes) -> PasswordRecord:
    salt, digest = drawn[: len(shape.salt)], drawn[-len(shape.digest) :]
    return PasswordRecord(shape.kind, salt, digest, shape.iterations, shape.memory_kib, shape.lanes)


class KnownLogins:
    """Successful logins of the last minute, by a keyed digest of user, password and record.

    Args:
        secret: Of this process, 16 bytes or more; never written.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def key(self, user: str, password: bytes, record: UserRecord) -> bytes:
        """Return the key of a login; it depends on the user's record."""
        assert record.password is not None
        parts = user.encode(), password, encode_record(record.password).encode(), b"%d" % record.version
        framed = b"".join(b"%d:" % len(part) + part for part in parts)
        return hmac.digest(self._secret, framed, hashlib.sha256)

    def knows(self, key: bytes, now: float) -> bool:
        """Return whether the login succeeded within the last minute."""
        until = self._until.get(key)
        if until is None:
            return False
        if now < until:
            return True
        del self._until[key]
        return False

    def remember(self, key: bytes, now: float) -> None:
        """Record a successful login; the minute starts at its hash, so further logins do not extend it."""
        self._until.pop(key, None)
        self._until[key] = now + REMEMBERED_S
        if len(self._until) > REMEMBERED_MAX:
            self._until.popitem(last=False)

    def clear(self) -> None:
        """Remove all: users were reloaded."""
        self._until.clear()

    def __len__(self) -> int:
        return len(self._until)


class PasswordStep:
    """The step ``password`` over one source of users.

    Args:
        users: The source.
        known: Successful logins.
        behind: The listener's next source, which these users never reach: a wrong password takes as long here as a name
            that neither source has.
    """

    name = "password"
    methods: tuple[str, ...] = ()

    def __init__(self, users: UserSource, known: KnownLogins, behind: UserSource | None = None) -> None:
        self._users = users
        self._known = known
        self._behind = behind

    def replace(self, users: UserSource) -> None:
        """Use reloaded users; running hashes are checked against them."""
        self._users = users
        self._known.clear()

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Find the user; request a hash unless this login succeeded within the last minute."""
        user = credentials.user
        if user is None or credentials.password is None or credentials.method:
            return Pass()
        if name_fault(user):  # no user has such a name; it may not even be Unicode
            return self._hash(credentials, "?", None, moment)
        found = self._users.find(user)
        return Wait(found) if isinstance(found, FetchUser) else self._hash(credentials, user, found, moment)

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Evaluate the hash, or continue with the user from the routers."""
        if isinstance(job, _DummyUser):  # whatever the routers answer for a name that is not theirs
            return self._dummy_hash(credentials, job.user)
        if isinstance(job, _DummyHash):
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong password")
        if isinstance(job, FetchUser):
            if not isinstance(result, UserFound) or result.user != job.user:
                return Failed("password: no router told the user")
            return self._hash(credentials, job.user, result.record, moment)
        if not isinstance(job, _RecordHash) or not isinstance(result, bool):
            return Failed("password: the hash was not computed")
        if not job.known:
            return Pass()  # an unknown name: another step may know it
        if not result or job.user != credentials.user or job.password != credentials.password:
            return self._wrong(credentials, job.user)
        found = self._users.find(job.user)
        current = job.found if isinstance(found, FetchUser) else found
        if current is None or current.password != job.record:
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the password was changed meanwhile")
        self._known.remember(self._known.key(job.user, job.password, current), moment.now)
        return self._allow(credentials, job.user, current)

    def _wrong(self, credentials: Credentials, user: str) -> Answer:
        """Refuse a wrong password after the same time as an unknown name."""
        found = self._behind.find(user) if self._behind is not None else None
        if isinstance(found, FetchUser):
            return Wait(_DummyUser(user))
        return self._dummy_hash(credentials, user)

    def _dummy_hash(self, credentials: Credentials, user: str) -> Answer:
        if self._behind is None:
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong password")
        return Wait(_DummyHash(user, self._behind.decoy(user), credentials.password or b"", False))

    def _hash(self, credentials: Credentials, user: str, found: UserRecord | None, moment: TimePoint) -> Answer:
        """Request a hash, or allow a login that succeeded within the last minute.

        Known and unknown names take the same path up to the answer: compared with a weak record's 70 us, each step
        would be measurable.
        """
        assert credentials.password is not None
        decoy = UserRecord(self._users.decoy(user))
        if found is not None and found.password is None:
            found = None  # a user without a password counts as unknown here
        record = decoy if found is None else found
        assert record.password is not None
        remembered = self._known.knows(self._known.key(user, credentials.password, record), moment.now)
        if remembered and found is not None:
            return self._allow(credentials, user, found)
        return Wait(_RecordHash(user, record.password, credentials.password, found is not None, found))

    def _allow(self, credentials: Credentials, user: str, found: UserRecord) -> Answer:
        if found.disabled:  # only the owner of the password learns this
            return Deny(ReasonCode.NOT_AUTHORIZED, "user disabled")
        return Allow(found.principal(user, self.name, credentials.client_id))


@dataclass(frozen=True, slots=True)
class _RecordHash(HashJob):
    """The hash job of this step, with the record that it checks."""

    found: UserRecord | None = None


@dataclass(frozen=True, slots=True)
class _DummyUser(FetchUser):
    """The request for a user of the file whose password was wrong."""


@dataclass(frozen=True, slots=True)
class _DummyHash(HashJob):
    """The hash after it."""
