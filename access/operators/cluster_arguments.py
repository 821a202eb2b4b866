"""Arguments of the verbs about the cluster, the ring, gossip keys, and the stores of storage nodes.

A request comes from a socket: if its arguments violate these types, lengths and ranges, the node refuses it in one
line. ``access/operators/commands.py`` defines role and tier of each verb. ``router/operators/queries.py``,
``router/operators/group_commands.py`` and ``storage/export/exporter.py`` implement them.
"""

from typing import Annotated

from msgspec import Meta, Struct

from wire.messages.ranges import NodeName, SomeNode

__all__ = [
    "CopiesArguments",
    "DelegateArguments",
    "ExplainArguments",
    "Export",
    "ExportStatus",
    "InstallKey",
    "LossArguments",
    "MapChangeArguments",
    "NamedKey",
    "NoArguments",
    "NodeArguments",
    "PlanArguments",
    "QuarantineRemoveArguments",
    "Rebalance",
    "Recover",
    "RouterArguments",
    "TransferArguments",
    "Undelegate",
]

INT64_MAX = (1 << 63) - 1

NodeNames = Annotated[list[NodeName], Meta(max_length=1024)]
Name = Annotated[str, Meta(max_length=65_535)]  # a topic or a client identifier
Folder = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Key = Annotated[str, Meta(max_length=128)]
Partition = Annotated[int, Meta(ge=0, lt=0xFFFF)]
PartitionText = Annotated[str, Meta(pattern=r"^([0-9]{1,5}|all)$")]  # as on the command line
Partitions = Annotated[list[Partition], Meta(max_length=0xFFFF)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
PartitionCounts = Annotated[dict[Annotated[str, Meta(pattern=r"^[0-9]{1,5}$")], Count], Meta(max_length=0xFFFF)]


class _Arguments(Struct, forbid_unknown_fields=True):
    """Arguments of one verb."""


class NoArguments(_Arguments):
    """A verb without arguments."""


class MapChangeArguments(_Arguments):
    """A verb that changes the map."""

    dry_run: bool = False


class NodeArguments(_Arguments):
    """A verb that changes one node."""

    node: NodeName
    dry_run: bool = False


class RouterArguments(_Arguments):
    """A change of the routers' group; it has no dry run."""

    node: NodeName


class ExplainArguments(_Arguments):
    """``ring explain``."""

    name: Name


class PlanArguments(_Arguments):
    """``ring plan``: as if these nodes were added or emptied."""

    add: NodeNames = []
    drain: NodeNames = []


class LossArguments(_Arguments):
    """``ring lost``."""

    partition: PartitionText


class Recover(_Arguments):
    """``ring recover``: start with the data of one node."""

    partition: PartitionText
    node: NodeName
    dry_run: bool = False


class DelegateArguments(_Arguments):
    """``ring delegate``."""

    prefix: Name
    depth: Annotated[int, Meta(ge=1, le=32)]
    pin: SomeNode = ""
    dry_run: bool = False


class Undelegate(_Arguments):
    """``ring undelegate``."""

    prefix: Name
    dry_run: bool = False


class Rebalance(_Arguments):
    """``ring rebalance``."""

    throttle_bytes_s: Count = 0
    map_epoch: Count | None = None  # only if the map still has the epoch of a plan
    dry_run: bool = False


class TransferArguments(_Arguments):
    """``cluster transfer``: to this router, or to any."""

    node: SomeNode = ""


class InstallKey(_Arguments):
    """``membership keys install``: base64."""

    key: Key


class NamedKey(_Arguments):
    """``membership keys use`` and ``remove``: hexadecimal."""

    key_id: Annotated[str, Meta(pattern=r"^([0-9a-fA-F]{2}){1,32}$")]
    force: bool = False


class Export(_Arguments):
    """``store export``: ``folder`` is below ``root``, which holds the manifests."""

    root: Folder
    folder: Folder
    now_ms: Count
    replicas: bool = False
    since: PartitionCounts = {}  # partition -> op_index of the base
    generations: PartitionCounts = {}
    partitions: Partitions | None = None  # None: all for which this node is primary or has a copy


class ExportStatus(_Arguments):
    """``store export status``."""

    after: Count | None = None  # also return finished partitions, from this one on


class CopiesArguments(_Arguments):
    """``store copies``."""

    partitions: Partitions


class QuarantineRemoveArguments(_Arguments):
    """``store aside remove``: one store, by its name in ``store aside``."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}$")]
    dry_run: bool = False
