"""The snapshot of a router in the Raft log's place: the map's state, and the policy's behind it once there is one.

A snapshot of an earlier version has no policy: an empty one. The map is encoded at once; of the policy only references
are taken then, and another thread joins them in slices, so that 200 000 users do not hold up the loop. All of a
snapshot is of one index of the log.
"""

from collections.abc import Callable, Iterable

import msgspec

from access.policy.machine import PolicyMachine
from router.map.machine import MapMachine
from router.map.snapshot import RouterState, decode_snapshot
from wire.decoding import Payload, Unreadable

__all__ = ["capture", "restore", "snapshot_fault"]

SLICE = 2_000  # records that are joined at a time: a fraction of a millisecond without the interpreter's lock changing


class _Captured(msgspec.Struct):
    """As ``RouterState``, each part but the policy encoded already."""

    map: msgspec.Raw
    job: msgspec.Raw
    orders: msgspec.Raw
    policy: bytes


def capture(map_machine: MapMachine, policy: PolicyMachine) -> Callable[[], bytes]:
    """Return what encodes the state of now, in any thread, while the machines go on."""
    if policy.is_new:
        data = map_machine.snapshot()
        return lambda: data
    encode = msgspec.msgpack.encode
    parts = map_machine.map, map_machine.job, map_machine.orders.known
    cluster_map, job, orders = (msgspec.Raw(encode(part)) for part in parts)
    captured = policy.capture()
    return lambda: encode(_Captured(cluster_map, job, orders, b"".join(_joined(captured))))


def _joined(parts: Iterable[bytes | list[bytes]]) -> Iterable[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            for at in range(0, len(part), SLICE):
                yield b"".join(part[at : at + SLICE])


def restore(data: Payload, map_machine: MapMachine, policy: PolicyMachine) -> None:
    """Replace the state of both machines.

    Raises:
        Unreadable: If it is no snapshot of ours; nothing changed.
    """
    state = decode_snapshot(data)
    if state.policy:
        policy.restore(state.policy)
    else:
        policy.clear()
    map_machine.take(state)


def snapshot_fault(data: Payload) -> str:
    """Return why a snapshot cannot be restored, "" if it can."""
    try:
        state: RouterState = decode_snapshot(data)
        if state.policy:
            PolicyMachine().restore(state.policy)
    except Unreadable as error:
        return str(error)
    return ""
