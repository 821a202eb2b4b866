"""Arguments of the verbs about users, rights, bans, audit and reloads, and of ``client kick``.

Passwords are never arguments: the command line sends the record (argon2id) and, if requested, the verifier (SCRAM).
Arguments of other verbs are in ``access/operators/cluster_arguments.py``. Ranges of names are those of the policy
(``access/policy/records.py``), which checks them again.
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
WEAKEST = 7_168 * 5  # KiB times passes: OWASP's minimum is 7 MiB, five times; ours is 19 MiB, twice
COSTLIEST = 262_144  # likewise: about 0.5 s of the thread that hashes for all logins of an edge
SECONDS_MAX = 315_360_000  # ten years
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]  # 0: until removed


class _Arguments(Struct, forbid_unknown_fields=True):
    """Arguments of one verb."""


class _WithRecord(_Arguments):
    """Arguments with a password record that the caller made: a weak one could be guessed if it leaked."""

    user: Name
    record: Record = ""

    def __post_init__(self) -> None:
        """Refuse a record of another format, and one whose cost is too low or too high."""
        if not self.record:
            return
        found = RECORD.fullmatch(self.record)
        if found is None:
            raise ValueError("record: expected $argon2id$v=19$m=...,t=...,p=...$salt$hash")
        if not WEAKEST <= int(found[1]) * int(found[2]) <= COSTLIEST:
            raise ValueError(f"record: memory in KiB times passes is {WEAKEST} to {COSTLIEST}")


class List(_Arguments):
    """``user list`` and similar: at most ``count`` names after ``after``."""

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
    """``user change``: absent fields stay."""

    user: Name
    roles: Names | None = None
    groups: Names | None = None
    limits: Limits | None = None
    dry_run: bool = False


class UserPassword(_WithRecord):
    """``user password``; without a verifier the user's SCRAM verifier is removed."""

    verifier: Verifier = ""
    dry_run: bool = False


class RuleText(_Arguments):
    """One rule of a role, as the policy stores it."""

    allow: bool
    actions: Annotated[int, Meta(ge=1, le=63)]
    filter: Annotated[str, Meta(min_length=1, max_length=1_024)]
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    listener: Annotated[str, Meta(max_length=32)] = ""
    network: Annotated[str, Meta(max_length=64)] = ""


class RolePut(_Arguments):
    """``role put``: create or replace a role."""

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
    """``group put``: create or replace a group."""

    group: Name
    roles: Names = []
    limits: Limits = {}
    dry_run: bool = False


class GroupArguments(_Arguments):
    """``group show | delete``."""

    group: Name
    dry_run: bool = False


class BanAdd(_Arguments):
    """``ban add``; ``for_s`` starts when a router receives the order."""

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
    # another form matches no issuer, so nothing would be revoked
    issuer: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
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
    """``token create``: the command line generates the token and sends its SHA-256."""

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
    """``token check``: the token of a SHA-256; sent by the HTTP service for each request."""

    digest: Digest


class PolicyStatus(_Arguments):
    """``policy status``: nodes that have not acknowledged an epoch; 0 is the newest."""

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
    """``msg send``: a message that an edge publishes; the router chooses the edge if none is named."""

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
    """``client drain``: how a drained edge disconnects its clients, also as a dry run."""

    node: NodeName
    rate: Annotated[int, Meta(ge=0, le=100_000)] = 0
    redirect: bool = False
    dry_run: bool = False


class TraceStart(_Arguments):
    """``trace start``: every edge and storage node, or one, records the events of the named subject."""

    trace: TraceName
    kind: Literal["client", "topic", "address", "origin"]
    pattern: Pattern
    for_s: Annotated[int, Meta(ge=1, le=TRACE_S_MAX)] = 600
    events_max: Annotated[int, Meta(ge=1, le=TRACE_EVENTS_MAX)] = 10_000
    payload_bytes: Annotated[int, Meta(ge=0, le=TRACE_PAYLOAD_MAX)] = 0
    node: SomeNode = ""
    dry_run: bool = False


class TraceStop(_Arguments):
    """``trace stop``: the events stay readable until another trace replaces it."""

    trace: TraceName
    node: SomeNode = ""
    dry_run: bool = False


class ListenerArguments(_Arguments):
    """``listener pause | resume``: at one edge, or at all with a listener of that name."""

    listener: ListenerName
    node: SomeNode = ""
    dry_run: bool = False


class ReloadArguments(_Arguments):
    """``reload``: one node, or all."""

    node: SomeNode = ""
    dry_run: bool = False
