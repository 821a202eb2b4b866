"""The one table of operators' verbs: which tier answers, which role it takes, and what its arguments are.

The role stands in the operator's certificate, ``stratamq://<cluster>/<role>/<name>``, and from there in the name of
the operator's link (``wire/links/admission.py``). A higher role may all that a lower one may. A node asks ``judge``
before it reads an argument further, and refuses a verb that has no row here.
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
    "Refusal",
    "Role",
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


class Role(enum.IntEnum):
    """Roles of operators, by power."""

    VIEWER = 1  # reads
    OPERATOR = 2  # drains, rebalances, kicks, bans, reloads, exports
    ADMIN = 3  # changes users, roles, keys and members, gives data up, reads the audit


ROLES = dict(zip(OPERATOR_ROLES, Role, strict=True))


class Operator(msgspec.Struct, frozen=True):
    """An operator as its certificate says."""

    role: Role
    name: str


class Verb(msgspec.Struct, frozen=True):
    """One row: who answers, what it takes, and whether it leaves anything changed."""

    tier: str
    role: Role
    changes: bool
    arguments: type[msgspec.Struct]


class Refusal(Exception):
    """A question that is not carried out; the text is one line for the operator."""


def _row(role: Role, arguments: type[msgspec.Struct], changes: bool = True, tier: str = TIER_ROUTER) -> Verb:
    return Verb(tier, role, changes, arguments)


def _reads(arguments: type[msgspec.Struct], role: Role = Role.VIEWER, tier: str = TIER_ROUTER) -> Verb:
    return Verb(tier, role, False, arguments)


VERBS: dict[str, Verb] = {
    "cluster status": _reads(older.Nothing),
    "cluster forget": _row(Role.ADMIN, older.AboutNode),
    "cluster join": _row(Role.ADMIN, older.AboutRouter),
    "cluster leave": _row(Role.ADMIN, older.AboutRouter),
    "cluster transfer": _row(Role.OPERATOR, older.Transfer),
    "node list": _reads(older.Nothing),
    "node drain": _row(Role.OPERATOR, older.AboutNode),
    "node undrain": _row(Role.OPERATOR, older.AboutNode),
    "ring show": _reads(older.Nothing),
    "ring explain": _reads(older.Explain),
    "ring export": _reads(older.Nothing),
    "ring plan": _reads(older.PlanFor),
    "ring status": _reads(older.Nothing),
    "ring verify": _reads(older.Nothing),
    "ring lost": _reads(older.Lost),
    "ring recover": _row(Role.ADMIN, older.Recover),
    "ring add": _row(Role.OPERATOR, older.AboutNode),
    "ring drain": _row(Role.OPERATOR, older.AboutNode),
    "ring remove": _row(Role.OPERATOR, older.AboutNode),
    "ring rebalance": _row(Role.OPERATOR, older.Rebalance),
    "ring pause": _row(Role.OPERATOR, older.Change),
    "ring resume": _row(Role.OPERATOR, older.Change),
    "ring abort": _row(Role.OPERATOR, older.Change),
    "ring delegate": _row(Role.ADMIN, older.Delegation),
    "ring undelegate": _row(Role.ADMIN, older.Undelegate),
    "membership list": _reads(older.Nothing),
    "membership keys list": _reads(older.Nothing),
    "membership keys install": _row(Role.ADMIN, older.InstallKey),
    "membership keys use": _row(Role.ADMIN, older.NamedKey),
    "membership keys remove": _row(Role.ADMIN, older.NamedKey),
    "store export": _row(Role.OPERATOR, older.Export, tier=TIER_STORAGE),
    "store export status": _reads(older.ExportStatus, tier=TIER_STORAGE),
    "store export cancel": _row(Role.OPERATOR, older.Nothing, tier=TIER_STORAGE),
    "store copies": _reads(older.Copies, tier=TIER_STORAGE),
    "store aside": _reads(older.Nothing, tier=TIER_STORAGE),
    "store aside remove": _row(Role.ADMIN, older.AsideRemove, tier=TIER_STORAGE),  # no copy is left of it
    "user list": _reads(our.List),
    "user show": _reads(our.AboutUser),
    "user add": _row(Role.ADMIN, our.UserAdd),
    "user change": _row(Role.ADMIN, our.UserChange),
    "user password": _row(Role.ADMIN, our.UserPassword),
    "user disable": _row(Role.ADMIN, our.AboutUser),
    "user enable": _row(Role.ADMIN, our.AboutUser),
    "user delete": _row(Role.ADMIN, our.AboutUser),
    "role list": _reads(our.List),
    "role show": _reads(our.AboutRole),
    "role put": _row(Role.ADMIN, our.RolePut),
    "role delete": _row(Role.ADMIN, our.AboutRole),
    "group list": _reads(our.List),
    "group show": _reads(our.AboutGroup),
    "group put": _row(Role.ADMIN, our.GroupPut),
    "group delete": _row(Role.ADMIN, our.AboutGroup),
    "ban list": _reads(our.List),
    "ban add": _row(Role.OPERATOR, our.BanAdd),
    "ban del": _row(Role.OPERATOR, our.BanDelete),
    "revoke": _row(Role.OPERATOR, our.Revoke),
    "unrevoke": _row(Role.ADMIN, our.Unrevoke),
    "token list": _reads(our.List),
    "token create": _row(Role.ADMIN, our.TokenCreate),
    "token revoke": _row(Role.ADMIN, our.TokenRevoke),
    "token check": _reads(our.TokenCheck, Role.ADMIN),
    "policy status": _reads(our.PolicyStatus),
    "client kick": _row(Role.OPERATOR, our.Kick),
    "msg send": _row(Role.OPERATOR, our.MsgSend),
    "retained clear": _row(Role.ADMIN, our.RetainedClear),
    "queue purge": _row(Role.ADMIN, our.AboutSession),
    "session delete": _row(Role.ADMIN, our.AboutSession),
    "session expire": _row(Role.ADMIN, our.AboutSession),
    "listener pause": _row(Role.OPERATOR, our.AboutListener),
    "listener resume": _row(Role.OPERATOR, our.AboutListener),
    "client drain": _row(Role.OPERATOR, our.DrainClients),
    "trace start": _row(Role.OPERATOR, our.TraceStart),
    "trace stop": _row(Role.OPERATOR, our.TraceStop),
    "reload": _row(Role.OPERATOR, our.Reload),
}

# Arguments that the audit may show. One that is not named here is left out: records, verifiers and keys, and what a
# later verb may bring.
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

    The name of the link is what admission made of the certificate: ``<role>:<name>/<command>``. A gateway may read
    what a viewer may.
    """
    if peer is not None and peer.tier == TIER_GATEWAY:
        return Operator(Role.VIEWER, peer.node)
    if peer is None or peer.tier != TIER_OPERATOR:
        return None
    role, colon, rest = peer.node.partition(":")
    name, slash, _ = rest.partition("/")
    if role not in ROLES or not colon or not slash or not name:
        return None
    return Operator(ROLES[role], name)


def speaker(question: Admin, operator: Operator | None) -> Operator | None:
    """Return whom a question speaks for: a service names another one, whose role never exceeds its own."""
    if operator is None or not (question.actor or question.role):
        return operator
    role = min(operator.role, ROLES.get(question.role, Role.VIEWER)) if question.role else operator.role
    name = f"{question.actor} by {operator.name}" if question.actor else operator.name
    return Operator(role, name)


def judge(question: Admin, operator: Operator | None, tier: str) -> tuple[Verb, msgspec.Struct]:
    """Return the row of a question and its arguments, checked, if this operator may ask this tier for it.

    Raises:
        Refusal: The verb is none of this tier, the role does not suffice, or an argument is missing, unknown or out of
            its range. The role is judged before the arguments.
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
    """Return the arguments of a question by name, checked, with the defaults of those that were not given.

    Raises:
        Refusal: The verb is none of this tier, or an argument is missing, unknown or out of its range.
    """
    return msgspec.structs.asdict(_converted(question, _row_of(question, tier)))


def tier_of(verb: str) -> str:
    """Return the tier that answers a verb; of one without a row, which it refuses, that of the routers."""
    row = VERBS.get(verb)
    return row.tier if row is not None else TIER_ROUTER


def changes(verb: str) -> bool:
    """Return whether a verb leaves anything changed."""
    row = VERBS.get(verb)
    return row is not None and row.changes


def audit_arguments(arguments: msgspec.Struct) -> dict[str, str | int | float | bool]:
    """Return the arguments that the audit shows, without what may be secret; lists and tables as one text."""
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
    """Return a list or a table as JSON, cut; rules are shown by their fields."""
    return msgspec.json.encode(value)[:SHOWN_TEXT_MAX].decode("utf-8", "replace")


def _line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN_TEXT_MAX])
