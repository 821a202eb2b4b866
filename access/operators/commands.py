"""The table of operators' verbs: tier, required role and arguments of each.

The role is in the operator's certificate, ``stratamq://<cluster>/<role>/<name>``, and from there in the name of the
operator's link (``wire/links/admission.py``). A higher role includes the lower ones. A node calls ``judge`` before it
uses an argument, and refuses a verb without a row here.
"""

import enum
from typing import Any

import msgspec

from access.operators import arguments as our
from access.operators import cluster_arguments as older
from wire.messages.hello import OPERATOR_ROLES, TIER_GATEWAY, TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE, PeerKey
from wire.messages.operators import Admin

__all__ = [
    "ROLES",
    "VERBS",
    "Operator",
    "OperatorRole",
    "Refusal",
    "Verb",
    "arguments_of",
    "audit_arguments",
    "changes",
    "judge",
    "operator_of",
    "speaker",
    "tier_of",
]

SCHEME = "stratamq://"


class OperatorRole(enum.IntEnum):
    """Roles of operators, in ascending order."""

    VIEWER = 1  # reads
    OPERATOR = 2  # drains, rebalances, kicks, bans, reloads, exports
    ADMIN = 3  # changes users, roles, keys and members, accepts data loss, reads the audit log


ROLES = dict(zip(OPERATOR_ROLES, OperatorRole, strict=True))


class Operator(msgspec.Struct, frozen=True):
    """An operator according to its certificate."""

    role: OperatorRole
    name: str


class Verb(msgspec.Struct, frozen=True):
    """One row: tier, role, arguments, and whether the verb changes state."""

    tier: str
    role: OperatorRole
    changes: bool
    arguments: type[msgspec.Struct]


class Refusal(Exception):
    """A refused request; the text is one line for the operator."""


def _row(role: OperatorRole, arguments: type[msgspec.Struct], changes: bool = True, tier: str = TIER_ROUTER) -> Verb:
    return Verb(tier, role, changes, arguments)


def _reads(arguments: type[msgspec.Struct], role: OperatorRole = OperatorRole.VIEWER, tier: str = TIER_ROUTER) -> Verb:
    return Verb(tier, role, False, arguments)


VERBS: dict[str, Verb] = {
    "cluster status": _reads(older.NoArguments),
    "cluster forget": _row(OperatorRole.ADMIN, older.NodeArguments),
    "cluster join": _row(OperatorRole.ADMIN, older.RouterArguments),
    "cluster leave": _row(OperatorRole.ADMIN, older.RouterArguments),
    "cluster transfer": _row(OperatorRole.OPERATOR, older.TransferArguments),
    "node list": _reads(older.NoArguments),
    "node drain": _row(OperatorRole.OPERATOR, older.NodeArguments),
    "node undrain": _row(OperatorRole.OPERATOR, older.NodeArguments),
    "ring show": _reads(older.NoArguments),
    "ring explain": _reads(older.ExplainArguments),
    "ring export": _reads(older.NoArguments),
    "ring plan": _reads(older.PlanArguments),
    "ring status": _reads(older.NoArguments),
    "ring verify": _reads(older.NoArguments),
    "ring lost": _reads(older.LossArguments),
    "ring recover": _row(OperatorRole.ADMIN, older.Recover),
    "ring add": _row(OperatorRole.OPERATOR, older.NodeArguments),
    "ring drain": _row(OperatorRole.OPERATOR, older.NodeArguments),
    "ring remove": _row(OperatorRole.OPERATOR, older.NodeArguments),
    "ring rebalance": _row(OperatorRole.OPERATOR, older.Rebalance),
    "ring pause": _row(OperatorRole.OPERATOR, older.MapChangeArguments),
    "ring resume": _row(OperatorRole.OPERATOR, older.MapChangeArguments),
    "ring abort": _row(OperatorRole.OPERATOR, older.MapChangeArguments),
    "ring delegate": _row(OperatorRole.ADMIN, older.DelegateArguments),
    "ring undelegate": _row(OperatorRole.ADMIN, older.Undelegate),
    "membership list": _reads(older.NoArguments),
    "membership keys list": _reads(older.NoArguments),
    "membership keys install": _row(OperatorRole.ADMIN, older.InstallKey),
    "membership keys use": _row(OperatorRole.ADMIN, older.NamedKey),
    "membership keys remove": _row(OperatorRole.ADMIN, older.NamedKey),
    "store export": _row(OperatorRole.OPERATOR, older.Export, tier=TIER_STORAGE),
    "store export status": _reads(older.ExportStatus, tier=TIER_STORAGE),
    "store export cancel": _row(OperatorRole.OPERATOR, older.NoArguments, tier=TIER_STORAGE),
    "store copies": _reads(older.CopiesArguments, tier=TIER_STORAGE),
    "store aside": _reads(older.NoArguments, tier=TIER_STORAGE),
    "store aside remove": _row(
        OperatorRole.ADMIN, older.QuarantineRemoveArguments, tier=TIER_STORAGE
    ),  # no copy remains
    "user list": _reads(our.List),
    "user show": _reads(our.UserArguments),
    "user add": _row(OperatorRole.ADMIN, our.UserAdd),
    "user change": _row(OperatorRole.ADMIN, our.UserChange),
    "user password": _row(OperatorRole.ADMIN, our.UserPassword),
    "user disable": _row(OperatorRole.ADMIN, our.UserArguments),
    "user enable": _row(OperatorRole.ADMIN, our.UserArguments),
    "user delete": _row(OperatorRole.ADMIN, our.UserArguments),
    "role list": _reads(our.List),
    "role show": _reads(our.RoleArguments),
    "role put": _row(OperatorRole.ADMIN, our.RolePut),
    "role delete": _row(OperatorRole.ADMIN, our.RoleArguments),
    "group list": _reads(our.List),
    "group show": _reads(our.GroupArguments),
    "group put": _row(OperatorRole.ADMIN, our.GroupPut),
    "group delete": _row(OperatorRole.ADMIN, our.GroupArguments),
    "ban list": _reads(our.List),
    "ban add": _row(OperatorRole.OPERATOR, our.BanAdd),
    "ban del": _row(OperatorRole.OPERATOR, our.BanDelete),
    "revoke": _row(OperatorRole.OPERATOR, our.RevokeArguments),
    "unrevoke": _row(OperatorRole.ADMIN, our.UnrevokeArguments),
    "token list": _reads(our.List),
    "token create": _row(OperatorRole.ADMIN, our.TokenCreate),
    "token revoke": _row(OperatorRole.ADMIN, our.TokenRevoke),
    "token check": _reads(our.TokenCheck, OperatorRole.ADMIN),
    "policy status": _reads(our.PolicyStatus),
    "client kick": _row(OperatorRole.OPERATOR, our.Kick),
    "msg send": _row(OperatorRole.OPERATOR, our.MsgSend),
    "retained clear": _row(OperatorRole.ADMIN, our.RetainedClear),
    "queue purge": _row(OperatorRole.ADMIN, our.SessionArguments),
    "session delete": _row(OperatorRole.ADMIN, our.SessionArguments),
    "session expire": _row(OperatorRole.ADMIN, our.SessionArguments),
    "listener pause": _row(OperatorRole.OPERATOR, our.ListenerArguments),
    "listener resume": _row(OperatorRole.OPERATOR, our.ListenerArguments),
    "client drain": _row(OperatorRole.OPERATOR, our.DrainClients),
    "trace start": _row(OperatorRole.OPERATOR, our.TraceStart),
    "trace stop": _row(OperatorRole.OPERATOR, our.TraceStop),
    "reload": _row(OperatorRole.OPERATOR, our.ReloadArguments),
}

# Arguments that the audit log may contain. All others are omitted: records, verifiers and keys, and those of later
# verbs.
SHOWN = frozenset(
    {
        "actions",
        "add",
        "after",
        "allow",
        "client_id",
        "count",
        "depth",
        "drain",
        "dry_run",
        "epoch",
        "events_max",
        "expiry_s",
        "filter",
        "folder",
        "for_s",
        "force",
        "generations",
        "group",
        "groups",
        "issuer",
        "key_id",
        "kind",
        "limits",
        "listener",
        "map_epoch",
        "name",
        "node",
        "now_ms",
        "partition",
        "partitions",
        "pattern",
        "payload_bytes",
        "pin",
        "prefix",
        "priority",
        "qos",
        "rate",
        "reason",
        "redirect",
        "replicas",
        "retain",
        "role",
        "roles",
        "root",
        "rules",
        "since",
        "throttle_bytes_s",
        "topic",
        "topics",
        "trace",
        "user",
        "value",
    }
)
SHOWN_TEXT_MAX = 256


def operator_of(peer: PeerKey | None) -> Operator | None:
    """Return the operator at the other end of a link, None if that is a node.

    Admission derived the link's name from the certificate: ``<role>:<name>/<command>``. A gateway has the rights of a
    viewer.
    """
    if peer is not None and peer.tier == TIER_GATEWAY:
        return Operator(OperatorRole.VIEWER, peer.node)
    if peer is None or peer.tier != TIER_OPERATOR:
        return None
    role, colon, rest = peer.node.partition(":")
    name, slash, _ = rest.partition("/")
    if role not in ROLES or not colon or not slash or not name:
        return None
    return Operator(ROLES[role], name)


def speaker(question: Admin, operator: Operator | None) -> Operator | None:
    """Return the operator on whose behalf a request is sent; a service's actor never exceeds the service's own role."""
    if operator is None or not (question.actor or question.role):
        return operator
    role = min(operator.role, ROLES.get(question.role, OperatorRole.VIEWER)) if question.role else operator.role
    name = f"{question.actor} by {operator.name}" if question.actor else operator.name
    return Operator(role, name)


def judge(question: Admin, operator: Operator | None, tier: str) -> tuple[Verb, msgspec.Struct]:
    """Return the verb and validated arguments of a request, if this operator may run it at this tier.

    Raises:
        Refusal: The tier has no such verb, the role is too low, or an argument is missing, unknown or out of range. The
            role is checked before the arguments.
    """
    verb = _row_of(question, tier)
    operator = speaker(question, operator)
    if operator is None:
        raise Refusal(f"`{question.verb}` wants an operator's certificate: {SCHEME}<cluster>/<role>/<name>")
    if operator.role < verb.role:
        wanted, has = verb.role.name.lower(), operator.role.name.lower()
        raise Refusal(f"`{question.verb}` wants the role {wanted}; the certificate of {operator.name} has {has}")
    return verb, _converted(question, verb)


def arguments_of(question: Admin, tier: str) -> dict[str, Any]:
    """Return the validated arguments of a request by name, with defaults.

    Raises:
        Refusal: The tier has no such verb, or an argument is missing, unknown or out of range.
    """
    return msgspec.structs.asdict(_converted(question, _row_of(question, tier)))


def tier_of(verb: str) -> str:
    """Return the tier of a verb; the routers' for an unknown one, which they refuse."""
    row = VERBS.get(verb)
    return row.tier if row is not None else TIER_ROUTER


def changes(verb: str) -> bool:
    """Return whether a verb changes state."""
    row = VERBS.get(verb)
    return row is not None and row.changes


def audit_arguments(arguments: msgspec.Struct) -> dict[str, str | int | float | bool]:
    """Return the arguments for the audit log, without possible secrets; lists and tables as one text."""
    shown: dict[str, str | int | float | bool] = {}
    for name in arguments.__struct_fields__:
        if name in SHOWN:
            value: Any = getattr(arguments, name)
            shown[name] = value if isinstance(value, str | int | float | bool) else _text(value)
    return shown


def _row_of(question: Admin, tier: str) -> Verb:
    verb = VERBS.get(question.verb)
    if verb is None or verb.tier != tier:
        raise Refusal(f"a {tier} node knows no `{_line(question.verb)}`")
    return verb


def _converted(question: Admin, verb: Verb) -> msgspec.Struct:
    try:
        return msgspec.convert(question.arguments, verb.arguments)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Refusal(f"`{question.verb}`: {_line(str(error))}") from None


def _text(value: Any) -> str:
    """Return a list or a table as JSON, truncated; rules by their fields."""
    return msgspec.json.encode(value)[:SHOWN_TEXT_MAX].decode("utf-8", "replace")


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN_TEXT_MAX])
