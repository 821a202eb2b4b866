"""The verbs of operators and the arguments of each: one table that every answering node checks questions against.

A question comes from a socket: its arguments have the types, lengths and ranges that stand here, or the node refuses it
in one line and does nothing. The meaning of a verb is in ``router/operators/queries.py``,
``router/operators/group_verbs.py`` and ``storage/export/export_desk.py``.
"""

from typing import Annotated, Any

import msgspec

from wire.messages.hello import TIER_ROUTER, TIER_STORAGE
from wire.messages.operators import Admin
from wire.messages.ranges import NodeName, SomeNode

__all__ = ["ROUTER_VERBS", "STORAGE_VERBS", "BadQuestion", "arguments_of", "tier_of"]

INT64_MAX = (1 << 63) - 1

NodeNames = Annotated[list[NodeName], msgspec.Meta(max_length=1024)]
Name = Annotated[str, msgspec.Meta(max_length=65_535)]  # a topic or a client identifier
Folder = Annotated[str, msgspec.Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Key = Annotated[str, msgspec.Meta(max_length=128)]
Partition = Annotated[int, msgspec.Meta(ge=0, lt=0xFFFF)]
PartitionText = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,5}|all)$")]  # as the command line gives it
Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
PartitionCounts = Annotated[
    dict[Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,5}$")], Count], msgspec.Meta(max_length=0xFFFF)
]


class BadQuestion(Exception):
    """No verb of this node, or not its arguments; the text is one line for the operator."""


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of one verb."""


class Nothing(_Arguments):
    """A verb that takes no argument."""


class Change(_Arguments):
    """A verb that changes the map."""

    dry_run: bool = False


class AboutNode(_Arguments):
    """A verb that changes something about one node."""

    node: NodeName
    dry_run: bool = False


class AboutRouter(_Arguments):
    """A step of the routers' group; it has no trial run."""

    node: NodeName


class Explain(_Arguments):
    """``ring explain``."""

    name: Name


class PlanFor(_Arguments):
    """``ring plan``: as if these nodes were added or emptied."""

    add: NodeNames = []
    drain: NodeNames = []


class Lost(_Arguments):
    """``ring lost``."""

    partition: PartitionText


class Recover(_Arguments):
    """``ring recover``: begin with what a node has."""

    partition: PartitionText
    node: NodeName
    dry_run: bool = False


class Delegation(_Arguments):
    """``ring delegate``."""

    prefix: Name
    depth: Annotated[int, msgspec.Meta(ge=1, le=32)]
    pin: SomeNode = ""
    dry_run: bool = False


class Undelegate(_Arguments):
    """``ring undelegate``."""

    prefix: Name
    dry_run: bool = False


class Rebalance(_Arguments):
    """``ring rebalance``."""

    throttle_bytes_s: Count = 0
    map_epoch: Count | None = None  # only if the map is still that of a plan
    dry_run: bool = False


class Transfer(_Arguments):
    """``cluster transfer``: to this router, or to any."""

    node: SomeNode = ""


class InstallKey(_Arguments):
    """``membership keys install``: base64."""

    key: Key


class NamedKey(_Arguments):
    """``membership keys use`` and ``remove``: hexadecimal."""

    key_id: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-fA-F]{2}){1,32}$")]
    force: bool = False


class Export(_Arguments):
    """``store export``: ``folder`` is below ``root``, which holds the manifests."""

    root: Folder
    folder: Folder
    now_ms: Count
    replicas: bool = False
    since: PartitionCounts = {}  # partition -> op_index of the base
    generations: PartitionCounts = {}


class Copies(_Arguments):
    """``store copies``."""

    partitions: Annotated[list[Partition], msgspec.Meta(max_length=0xFFFF)]


class AsideRemove(_Arguments):
    """``store aside remove``: one store, by its name in ``store aside``."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}$")]
    dry_run: bool = False


Verbs = dict[str, type[_Arguments]]

ROUTER_VERBS: Verbs = {
    "cluster status": Nothing,
    "cluster forget": AboutNode,
    "cluster join": AboutRouter,
    "cluster leave": AboutRouter,
    "cluster transfer": Transfer,
    "node list": Nothing,
    "node drain": AboutNode,
    "node undrain": AboutNode,
    "ring show": Nothing,
    "ring explain": Explain,
    "ring export": Nothing,
    "ring plan": PlanFor,
    "ring status": Nothing,
    "ring verify": Nothing,
    "ring lost": Lost,
    "ring recover": Recover,
    "ring add": AboutNode,
    "ring drain": AboutNode,
    "ring remove": AboutNode,
    "ring rebalance": Rebalance,
    "ring pause": Change,
    "ring resume": Change,
    "ring abort": Change,
    "ring delegate": Delegation,
    "ring undelegate": Undelegate,
    "membership keys list": Nothing,
    "membership keys install": InstallKey,
    "membership keys use": NamedKey,
    "membership keys remove": NamedKey,
}
STORAGE_VERBS: Verbs = {
    "store export": Export,
    "store export status": Nothing,
    "store export cancel": Nothing,
    "store copies": Copies,
    "store aside": Nothing,
    "store aside remove": AsideRemove,
}


def tier_of(verb: str) -> str:
    """Return the tier that answers a verb: routers, but for those of storage nodes."""
    return TIER_STORAGE if verb in STORAGE_VERBS else TIER_ROUTER


def arguments_of(question: Admin, verbs: Verbs) -> dict[str, Any]:
    """Return the arguments of a question, checked, with the defaults of those that were not given.

    Raises:
        BadQuestion: If the verb is not among ``verbs``, or an argument is missing, unknown, or out of its range.
    """
    shape = verbs.get(question.verb)
    if shape is None:
        raise BadQuestion(f"unknown verb {question.verb[:64]!r}")
    try:
        arguments = msgspec.convert(question.arguments, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadQuestion(f"`{question.verb}`: {error}".replace("\n", " ")) from None
    return {name: getattr(arguments, name) for name in shape.__struct_fields__}
