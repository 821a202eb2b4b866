"""The commands of the Raft log: changes of the map that a router may propose, as data.

``router/map/machine.py`` defines their effect, ``router/map/command_bounds.py`` the sizes of their parts.
"""

import msgspec

from router.placement.plan import RebalancePlan
from wire.decoding import Unreadable, strictly
from wire.messages.cluster_map import NodeEntry, PartitionEntry
from wire.messages.ranges import ClusterId

__all__ = [
    "AcceptLoss",
    "Bootstrap",
    "Command",
    "DeclareDead",
    "Delegate",
    "ForgetNode",
    "OperatorCommand",
    "Order",
    "PlacePartitions",
    "PlaceShards",
    "RegisterNode",
    "SetAdminState",
    "SetRebalance",
    "StartRebalance",
    "StopNodes",
    "decode_command",
    "encode_command",
    "is_readable",
]


class _Command(msgspec.Struct):
    """Root of the commands in the Raft log. The tag is the log's format: it survives a renaming of the class."""


class Bootstrap(_Command, tag="Bootstrap"):
    """First command of a cluster, with its permanent properties."""

    cluster: str
    partitions: int
    shards: int
    replicas: int
    min_in_sync: int
    lease_s: float
    cluster_id: ClusterId = ""


class RegisterNode(_Command, tag="RegisterNode"):
    """Admit an incarnation; committing it ends the former incarnation.

    The leader proposes it only when the former lease has certainly expired or its end is proved."""

    entry: NodeEntry
    whole: bool = True


class DeclareDead(_Command, tag="DeclareDead"):
    """End an incarnation whose lease has certainly expired."""

    node: str
    incarnation: int


class StopNodes(_Command, tag="StopNodes"):
    """Move the roles of incarnations that stop together to nodes that stay, as far as there are any."""

    # Node -> incarnation; a former incarnation is skipped. The log uses the field's former name.
    incarnations: dict[str, int] = msgspec.field(name="lives")


class PlacePartitions(_Command, tag="PlacePartitions"):
    """Compare-and-set of placements: an entry applies to a partition at the preceding epoch."""

    entries: dict[int, PartitionEntry]
    each: bool = False  # skip entries that do not apply; otherwise the first one refuses the whole command


class AcceptLoss(_Command, tag="AcceptLoss"):
    """An operator's confirmation that all whole copies of partitions are lost: another node starts with its own data.

    All or none; each partition must be at the named epoch and without a primary.
    """

    partitions: dict[int, int]  # number -> partition_epoch
    node: str


class PlaceShards(_Command, tag="PlaceShards"):
    """New owners of shards, each at the next epoch of its shard; all or none."""

    owners: dict[int, str]
    epochs: dict[int, int] = {}  # shard -> required shard_epoch, optional


class Delegate(_Command, tag="Delegate"):
    """Set (depth > 0) or remove (depth 0) the jurisdiction of a topic prefix."""

    prefix: str
    depth: int
    pin: str = ""


class SetAdminState(_Command, tag="SetAdminState"):
    """Set the administrative state of a node: "draining" or ""."""

    node: str
    state: str


class ForgetNode(_Command, tag="ForgetNode"):
    """Remove a dead node that holds no roles."""

    node: str


class StartRebalance(_Command, tag="StartRebalance"):
    """Start a plan, which must be of the current map epoch."""

    plan: RebalancePlan
    throttle_bytes_s: int = 0  # 0: no limit
    automatic: bool = False  # started by the leader for a late storage node


class SetRebalance(_Command, tag="SetRebalance"):
    """Pause, resume, abort or end the job of this number."""

    job: int
    state: str
    detail: str = ""


OperatorCommand = AcceptLoss | Delegate | SetAdminState | ForgetNode | StartRebalance | SetRebalance


class Order(_Command, tag="Order"):
    """An operator's command with the identifier from the command line, which makes it idempotent."""

    identifier: str
    command: OperatorCommand


Command = (
    Bootstrap
    | RegisterNode
    | DeclareDead
    | StopNodes
    | PlacePartitions
    | AcceptLoss
    | PlaceShards
    | Delegate
    | SetAdminState
    | ForgetNode
    | StartRebalance
    | SetRebalance
    | Order
)

_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_decode = strictly(_decoder.decode, "command")


def encode_command(command: Command) -> bytes:
    """Return the data of a Raft entry."""
    return msgspec.msgpack.encode(command)


def decode_command(data: bytes) -> Command:
    """Return the command of a Raft entry.

    Raises:
        Unreadable: The data is not a command.
    """
    return _decode(data)


def is_readable(data: bytes) -> bool:
    """Return whether other routers can decode a command: its parts are within the ranges of their types."""
    try:
        _decode(data)
    except Unreadable:
        return False
    return True
