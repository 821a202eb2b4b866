"""The Raft snapshot of a router: the map's state, followed by the policy's if there is one.

A snapshot of an earlier version has an empty policy. The map is encoded at once. The policy is captured as references,
which another thread joins in slices, so that 200 000 users do not block the loop. All parts are of one log index.
"""

from collections.abc import Callable, Iterable

import msgspec

from access.policy.machine import PolicyMachine
from router.map.machine import MapMachine
from router.map.snapshot import RouterState, decode_snapshot
from wire.decoding import Payload, Unreadable

__all__ = ["capture", "restore", "snapshot_fault"]

SLICE = 2_000  # records joined at a time: a fraction of a millisecond under the interpreter lock


class _Captured(msgspec.Struct):
    """``RouterState`` with all parts but the policy encoded."""

    map: msgspec.Raw
    job: msgspec.Raw
    orders: msgspec.Raw
    policy: bytes


def capture(map_machine: MapMachine, policy: PolicyMachine) -> Callable[[], bytes]:
    """Return a function that encodes the current state in any thread, independent of later changes."""
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
        Unreadable: The snapshot is invalid; no state changed.
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
