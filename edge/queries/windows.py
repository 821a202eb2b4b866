"""In-flight messages of a client from the loop's records: windows, pending messages, unsent bytes."""

from collections.abc import Iterator
from typing import Any

from edge.loop.round_trips import p99_ms
from edge.loop.state import LoopConnection

__all__ = [
    "in_flight",
    "oldest_unacknowledged",
    "open_packets",
    "round_trip_p99_ms",
    "unsent_bytes",
    "waiting_since_ns",
]

STATES = {1: "sent", 2: "sent", 3: "released", 4: "received"}  # of a packet to a client
ARRIVED = 3  # index of the arrival time in a pending message: edge/loop/state.py, Waiting


def unsent_bytes(conn: LoopConnection) -> int:
    """Return the bytes not yet written to the socket."""
    return conn.out.end - conn.out.start if conn.out is not None else 0


def in_flight(conn: LoopConnection) -> int:
    """Return the number of unacknowledged QoS 1 and 2 packets of a client."""
    outbound = conn.outbound
    if outbound is None:
        return 0
    return len(outbound.pushes) if outbound.pushes else outbound.inflight


def open_packets(conn: LoopConnection) -> Iterator[tuple[int, str, int | None]]:
    """Yield (packet identifier, state, session_seq of a durable session) of unacknowledged packets, oldest first."""
    outbound = conn.outbound
    if outbound is None:
        return
    if outbound.pushes:
        for identifier, (session_seq, _, state) in list(outbound.pushes.items()):
            yield identifier, STATES.get(state, "sent"), session_seq
        return
    found = []
    for slot, state in enumerate(outbound.states):
        if state:
            identifier = int.from_bytes(outbound.identifiers[2 * slot : 2 * slot + 2], "big")
            found.append(((outbound.next_identifier - identifier) % 65_535, identifier, state))
    for _, identifier, state in sorted(found, reverse=True):
        yield identifier, STATES.get(state, "sent"), None


def oldest_unacknowledged(conn: LoopConnection) -> int | None:
    """Return the packet identifier of a client's oldest unacknowledged packet."""
    return next((identifier for identifier, _, _ in open_packets(conn)), None)


def round_trip_p99_ms(conn: LoopConnection) -> float | None:
    """Return the 99th percentile of a client's acknowledgement time, None without acknowledgements."""
    return p99_ms(conn.outbound.trips.counted()) if conn.outbound is not None else None


def waiting_since_ns(conn: LoopConnection) -> int:
    """Return since when a message waits for the window of an ephemeral session, 0 if none does."""
    outbound = conn.outbound
    if outbound is None or not outbound.pending:
        return 0
    since_ns: Any = outbound.pending[0][ARRIVED]
    return int(since_ns)
