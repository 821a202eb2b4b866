"""The commands of the Raft log: what a router may propose about the map, as data.

What they do is ``router/map/machine.py``'s; how large their parts may be is ``router/map/command_bounds.py``'s.
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
    """Root of the commands in the Raft log. The tag is the format: it stays when a class gets another name."""


class Bootstrap(_Command, tag="Bootstrap"):
    """First command of a cluster: what is fixed for ever."""

    cluster: str
    partitions: int
    shards: int
    replicas: int
    min_in_sync: int
    lease_s: float
    cluster_id: ClusterId = ""


class RegisterNode(_Command, tag="RegisterNode"):
    """Let an incarnation in. The leader proposes it only when the former one's lease has surely run out or is proved
    ended; committing it ends the former incarnation."""

    entry: NodeEntry
    whole: bool = True


class DeclareDead(_Command, tag="DeclareDead"):
    """The lease of this incarnation has surely run out."""

    node: str
    incarnation: int


class StopNodes(_Command, tag="StopNodes"):
    """These incarnations stop, all at the same time: what they own goes to nodes that stay, as far as there are any."""

    # Node -> incarnation; one that is over is left out. The log has it under its former name.
    incarnations: dict[str, int] = msgspec.field(name="lives")


class PlacePartitions(_Command, tag="PlacePartitions"):
    """Compare-and-set of placements: an entry is for a partition that is at the epoch below it."""

    entries: dict[int, PartitionEntry]
    each: bool = False  # an entry that does not fit is left out; otherwise all are, and it is said why


class AcceptLoss(_Command, tag="AcceptLoss"):
    """An operator's word that the whole copies of partitions are gone for good: another node begins with what it has.

    All or none; each partition must be at the epoch that is named, and without a primary.
    """

    partitions: dict[int, int]  # number -> partition_epoch
    node: str


class PlaceShards(_Command, tag="PlaceShards"):
    """New owners of shards, each at the next epoch of its shard; all or none."""

    owners: dict[int, str]
    epochs: dict[int, int] = {}  # where named, the shard must be at this shard_epoch


class Delegate(_Command, tag="Delegate"):
    """Set (depth > 0) or remove (depth 0) the jurisdiction of a topic prefix."""

    prefix: str
    depth: int
    pin: str = ""


class SetAdminState(_Command, tag="SetAdminState"):
    """An operator's word about a node: "draining" or ""."""

    node: str
    state: str


class ForgetNode(_Command, tag="ForgetNode"):
    """Remove a dead node that holds nothing."""

    node: str


class StartRebalance(_Command, tag="StartRebalance"):
    """Begin to carry out a plan; it must be of this very map."""

    plan: RebalancePlan
    throttle_bytes_s: int = 0  # 0: as fast as it goes
    automatic: bool = False  # the leader's own, for a storage node that came late


class SetRebalance(_Command, tag="SetRebalance"):
    """Pause, resume, abort or end the job of this number."""

    job: int
    state: str
    detail: str = ""


OperatorCommand = AcceptLoss | Delegate | SetAdminState | ForgetNode | StartRebalance | SetRebalance


class Order(_Command, tag="Order"):
    """An operator's command with the identifier that the command line gave it: it is carried out once."""

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
        Unreadable: If it is not one.
    """
    return _decode(data)


def is_readable(data: bytes) -> bool:
    """Return whether other routers can read a command: its parts keep to the ranges of their types."""
    try:
        _decode(data)
    except Unreadable:
        return False
    return True
