"""Arguments of the verbs about users, rights, bans, audit and reloads, and of ``client kick``.

Passwords never come here: the command line makes the record (argon2id) and, where it is wanted, the verifier (SCRAM),
and sends those. Other verbs have theirs in ``access/operators/cluster_arguments.py``. Ranges of names are those of the
policy (``access/policy/records.py``), which judges them again.
"""

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from conf.limit_names import LIMIT_BELOW, LIMIT_NAMES
from wire.messages.orders import KICK_REASONS, SENT_BYTES_MAX, SENT_TOPICS_MAX
from wire.messages.queries import TRACE_EVENTS_MAX, TRACE_PAYLOAD_MAX, TRACE_S_MAX, Pattern, TraceName
from wire.messages.ranges import ListenerName, NodeName, SomeNode

__all__ = [
    "SECONDS_MAX",
    "BanAdd",
    "BanDelete",
    "Digest",
    "DrainClients",
    "GroupArguments",
    "GroupPut",
    "Kick",
    "List",
    "ListenerArguments",
    "MsgSend",
    "PolicyStatus",
    "ReloadArguments",
    "RetainedClear",
    "RevokeArguments",
    "RoleArguments",
    "RolePut",
    "RuleText",
    "Seconds",
    "TokenCheck",
    "TokenCreate",
    "TokenName",
    "TokenRevoke",
    "TokenRole",
    "TraceStart",
    "TraceStop",
    "UnrevokeArguments",
    "UserAdd",
    "UserArguments",
    "UserChange",
    "UserPassword",
]

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Names = Annotated[list[Name], Meta(max_length=64)]
Record = Annotated[str, Meta(max_length=512, pattern=r"^(\$argon2id\$[!-~]+)?\Z")]
Verifier = Annotated[str, Meta(max_length=512, pattern=r"^(SCRAM-SHA-(256|512)\$[!-~]+)?\Z")]
LimitName = Annotated[str, Meta(pattern=rf"^({'|'.join(LIMIT_NAMES)})\Z")]
Limits = dict[LimitName, Annotated[int, Meta(ge=0, lt=LIMIT_BELOW)]]
Subject = Annotated[str, Meta(min_length=1, max_length=65_535)]
Reason = Annotated[str, Meta(max_length=256)]
KickReason = Annotated[str, Meta(pattern=rf"^({'|'.join(KICK_REASONS)})\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
TokenName = Annotated[str, Meta(min_length=1, max_length=64)]
TokenRole = Literal["viewer", "operator", "admin"]
RECORD = re.compile(
    r"\$argon2id\$v=19\$m=([1-9][0-9]{0,5}),t=([1-9][0-9]?),p=[1-9][0-9]?\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+"
)
WEAKEST = 7_168 * 5  # KiB times passes: the cheapest that OWASP names is 7 MiB, five times; ours is 19 MiB, twice
COSTLIEST = 262_144  # the same: some half a second of the one thread that hashes for all logins of an edge
SECONDS_MAX = 315_360_000  # ten years
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]  # 0: until it is taken back


class _Arguments(Struct, forbid_unknown_fields=True):
    """Arguments of one verb."""


class _WithRecord(_Arguments):
    """Arguments with the record of a password, which whoever asks has made: a weak one that leaks is guessed soon."""

    user: Name
    record: Record = ""

    def __post_init__(self) -> None:
        """Refuse a record of another form, and one that costs too little or too much to try."""
        if not self.record:
            return
        found = RECORD.fullmatch(self.record)
        if found is None:
            raise ValueError("record: not $argon2id$v=19$m=...,t=...,p=...$salt$hash")
        if not WEAKEST <= int(found[1]) * int(found[2]) <= COSTLIEST:
            raise ValueError(f"record: memory in KiB times passes is {WEAKEST} to {COSTLIEST}")


class List(_Arguments):
    """``user list`` and its like: at most ``count`` names behind ``after``."""

    after: Annotated[str, Meta(max_length=65_535)] = ""
    count: Annotated[int, Meta(ge=1, le=1_000)] = 100


class UserArguments(_Arguments):
    """``user show | disable | enable | delete``."""

    user: Name
    dry_run: bool = False


class UserAdd(_WithRecord):
    """``user add``."""

    verifier: Verifier = ""
    roles: Names = []
    groups: Names = []
    limits: Limits = {}
    dry_run: bool = False


class UserChange(_Arguments):
    """``user change``: a field that is not given stays."""

    user: Name
    roles: Names | None = None
    groups: Names | None = None
    limits: Limits | None = None
    dry_run: bool = False


class UserPassword(_WithRecord):
    """``user password``; without a verifier the user has none afterwards."""

    verifier: Verifier = ""
    dry_run: bool = False


class RuleText(_Arguments):
    """One rule of a role, as the policy keeps it."""

    allow: bool
    actions: Annotated[int, Meta(ge=1, le=63)]
    filter: Annotated[str, Meta(min_length=1, max_length=1_024)]
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    listener: Annotated[str, Meta(max_length=32)] = ""
    network: Annotated[str, Meta(max_length=64)] = ""


class RolePut(_Arguments):
    """``role put``: a new role, or other rules and limits for one."""

    role: Name
    rules: Annotated[list[RuleText], Meta(max_length=1_024)]
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    limits: Limits = {}
    dry_run: bool = False


class RoleArguments(_Arguments):
    """``role show | delete``."""

    role: Name
    dry_run: bool = False


class GroupPut(_Arguments):
    """``group put``: a new group, or other roles for one."""

    group: Name
    roles: Names = []
    limits: Limits = {}
    dry_run: bool = False


class GroupArguments(_Arguments):
    """``group show | delete``."""

    group: Name
    dry_run: bool = False


class BanAdd(_Arguments):
    """``ban add``; ``for_s`` counts from when a router takes the order."""

    kind: Literal["user", "client_id", "address", "network", "certificate"]
    value: Subject
    for_s: Seconds = 0.0
    reason: Reason = ""
    dry_run: bool = False


class BanDelete(_Arguments):
    """``ban del``."""

    kind: Literal["user", "client_id", "address", "network", "certificate"]
    value: Subject
    dry_run: bool = False


class RevokeArguments(_Arguments):
    """``revoke``: a certificate's serial number (hexadecimal, with its issuer), or the ``jti`` of a token."""

    kind: Literal["serial", "token"]
    value: Annotated[str, Meta(min_length=1, max_length=256)]
    issuer: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""  # any other is nobody's: nothing would be revoked
    for_s: Seconds = 0.0
    reason: Reason = ""
    dry_run: bool = False


class UnrevokeArguments(_Arguments):
    """``unrevoke``."""

    kind: Literal["serial", "token"]
    value: Annotated[str, Meta(min_length=1, max_length=256)]
    issuer: Annotated[str, Meta(max_length=1_024)] = ""
    dry_run: bool = False


class TokenCreate(_Arguments):
    """``token create``: the command line makes the token; what leaves it is its SHA-256."""

    name: TokenName
    role: TokenRole
    digest: Digest
    for_s: Seconds = 0.0
    dry_run: bool = False


class TokenRevoke(_Arguments):
    """``token revoke``."""

    name: TokenName
    dry_run: bool = False


class TokenCheck(_Arguments):
    """``token check``: which token a SHA-256 is of; the HTTP service asks for each request."""

    digest: Digest


class PolicyStatus(_Arguments):
    """``policy status``: which nodes have yet to acknowledge an epoch; 0 is the newest."""

    epoch: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0


class Kick(_Arguments):
    """``client kick``; ``reason`` is one of KICK_REASONS."""

    client_id: Subject
    reason: KickReason = "administrative_action"
    dry_run: bool = False


class SessionArguments(_Arguments):
    """``session delete``, ``session expire``, ``queue purge``."""

    client_id: Subject
    dry_run: bool = False


class MsgSend(_Arguments):
    """``msg send``: a message that an edge publishes; which one is the router's choice where none is named."""

    topic: Subject
    payload: Annotated[bytes, Meta(max_length=SENT_BYTES_MAX)] = b""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False
    expiry_s: Annotated[int, Meta(ge=-1, lt=1 << 32)] = -1
    node: SomeNode = ""
    dry_run: bool = False


class RetainedClear(_Arguments):
    """``retained clear``: topics to which an edge publishes an empty retained message."""

    topics: Annotated[list[Subject], Meta(min_length=1, max_length=SENT_TOPICS_MAX)]
    dry_run: bool = False


class DrainClients(_Arguments):
    """``client drain``: how an edge lets its clients go once it is drained; what that would do."""

    node: NodeName
    rate: Annotated[int, Meta(ge=0, le=100_000)] = 0
    redirect: bool = False
    dry_run: bool = False


class TraceStart(_Arguments):
    """``trace start``: every edge and storage node, or one, notes what happens to what it names."""

    trace: TraceName
    kind: Literal["client", "topic", "address", "origin"]
    pattern: Pattern
    for_s: Annotated[int, Meta(ge=1, le=TRACE_S_MAX)] = 600
    events_max: Annotated[int, Meta(ge=1, le=TRACE_EVENTS_MAX)] = 10_000
    payload_bytes: Annotated[int, Meta(ge=0, le=TRACE_PAYLOAD_MAX)] = 0
    node: SomeNode = ""
    dry_run: bool = False


class TraceStop(_Arguments):
    """``trace stop``: what it has noted stays readable until another trace wants its place."""

    trace: TraceName
    node: SomeNode = ""
    dry_run: bool = False


class ListenerArguments(_Arguments):
    """``listener pause | resume``: of one edge, or of all that have a listener of that name."""

    listener: ListenerName
    node: SomeNode = ""
    dry_run: bool = False


class ReloadArguments(_Arguments):
    """``reload``: one node, or all."""

    node: SomeNode = ""
    dry_run: bool = False
