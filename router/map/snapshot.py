"""The Raft snapshot of the map: its encoding, and a check that commands can have produced its content.

A router restores a snapshot from its own disk and from a leader. A contradictory one would raise at later map lookups,
at every start. So it is refused as a whole, before any state is replaced.
"""

import msgspec

from router.map.command_bounds import NUMBER_MAX, TIERS, out_of_range
from router.map.commands import StartRebalance
from router.map.orders import ORDERS_MAX, MapOrderOutcome
from router.placement.plan import RebalanceJob
from wire.decoding import Payload, strictly
from wire.messages.cluster_map import ClusterMap

__all__ = ["MapState", "RouterState", "decode_snapshot", "encode_snapshot"]

JOB_STATES = frozenset({"running", "paused", "aborting", "done", "failed", "aborted"})


class MapState(msgspec.Struct):
    """All state of committed map commands."""

    map: ClusterMap
    job: RebalanceJob | None = None
    orders: dict[str, MapOrderOutcome] = {}


class RouterState(MapState):
    """Map state and encoded policy state, b"" without policy commands (``access/policy/machine.py``)."""

    policy: bytes = b""


def encode_snapshot(state: MapState) -> bytes:
    """Return the snapshot of a state."""
    return msgspec.msgpack.encode(state)


_decoder = msgspec.msgpack.Decoder(RouterState)


def _read(data: Payload) -> RouterState:
    state = _decoder.decode(data)
    contradiction = _map_fault(state.map) or _job_fault(state.job, state.map)
    if contradiction or len(state.orders) > ORDERS_MAX:
        raise ValueError(contradiction or f"{len(state.orders)} orders")
    return state


_strictly_read = strictly(_read, "snapshot of the map")


def decode_snapshot(data: Payload) -> RouterState:
    """Return the state in a snapshot.

    Raises:
        Unreadable: No commands can have produced this state.
    """
    return _strictly_read(data)


def _map_fault(cluster_map: ClusterMap) -> str:
    """Return why no commands can produce a map, "" if they can."""
    shards = len(cluster_map.shards)
    if cluster_map.cluster and not (cluster_map.partitions and 0 < cluster_map.base_shards <= shards):
        return f"{len(cluster_map.partitions)} partitions, {cluster_map.base_shards} of {shards} shards"
    if not cluster_map.cluster and (cluster_map.nodes or cluster_map.partitions or shards):
        return "a map without a cluster's name"
    for name, entry in cluster_map.nodes.items():
        if entry.node != name:
            return f"node {entry.node} under the name {name}"
        if entry.tier not in TIERS:
            return f"node {name} of tier {entry.tier}"
    for rule in cluster_map.delegations:
        if rule.shard >= shards:
            return f"a delegation to shard {rule.shard} of {shards}"
    return ""


def _job_fault(job: RebalanceJob | None, cluster_map: ClusterMap) -> str:
    """Return why no command can start such a rebalance, "" if one can."""
    if job is None:
        return ""
    if job.state not in JOB_STATES or not 0 <= job.number <= NUMBER_MAX:
        return f"rebalance {job.number} is {job.state}"
    return out_of_range(StartRebalance(job.plan, job.throttle_bytes_s), cluster_map)
