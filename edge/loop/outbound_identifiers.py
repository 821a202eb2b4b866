"""Packet identifiers of QoS 1 and 2 to one client: each has a state while it is in use.

Source: MQTT 5.0 sections 2.2.1, 4.3.2 and 4.3.3.
"""

import cython

from edge.loop.round_trips import RoundTrips
from edge.loop.state import OutboundWindow

if not cython.compiled:
    from edge.loop.picks import drop_pick

__all__: list[str] = []


def take_identifier(outbound: OutboundWindow, state: cython.int, now_ns: cython.longlong) -> cython.int:
    """Return the next free packet identifier, counting up from 1; one exists while inflight is below the window.

    ``state``: 1 waits for PUBACK, 2 for PUBREC, 3 (later) for PUBCOMP. ``now_ns``: time of the write.
    """
    identifier: cython.int = outbound.next_identifier
    states: bytearray = outbound.states
    while states[identifier & outbound.mask] != 0:
        identifier = identifier + 1 if identifier < 65_535 else 1
    states[identifier & outbound.mask] = state
    identifiers: bytearray = outbound.identifiers
    identifiers[2 * (identifier & outbound.mask)] = identifier >> 8
    identifiers[2 * (identifier & outbound.mask) + 1] = identifier & 0xFF
    outbound.inflight += 1
    assert outbound.inflight <= outbound.window, "more packets than the client's window"
    outbound.next_identifier = identifier + 1 if identifier < 65_535 else 1
    trips: RoundTrips = outbound.trips
    if trips.packet == 0:  # inline: a call would cost unacknowledged messages time as well
        trips.packet = identifier
        trips.since_ns = now_ns
    return identifier


def state_of(outbound: OutboundWindow, packet_identifier: cython.int) -> cython.int:
    """Return the state of an identifier, 0 when it is free."""
    slot: cython.int = packet_identifier & outbound.mask
    states: bytearray = outbound.states
    identifiers: bytearray = outbound.identifiers
    if states[slot] == 0 or (identifiers[2 * slot] << 8 | identifiers[2 * slot + 1]) != packet_identifier:
        return 0
    return states[slot]


def is_of_flow(state: cython.int, packet_type: cython.int) -> cython.bint:
    """Return whether PUBACK (4), PUBREC (5) or PUBCOMP (7) fits a message's state [MQTT-4.3.2-2] [MQTT-4.3.3-4].

    0: no such message, 1: QoS 1, 2: QoS 2, 3: PUBREL was sent, 4: PUBREC was received and PUBREL was not sent yet.
    """
    if state == 0:
        return True
    if state == 1 or packet_type == 4:
        return state == 1 and packet_type == 4
    return packet_type == 5 or state == 3


def set_state(outbound: OutboundWindow, packet_identifier: cython.int, state: cython.int) -> None:
    """Change the state of an identifier in use."""
    states: bytearray = outbound.states
    states[packet_identifier & outbound.mask] = state


def free_identifier(outbound: OutboundWindow, packet_identifier: cython.int) -> cython.bint:
    """Free an identifier in use."""
    states: bytearray = outbound.states
    states[packet_identifier & outbound.mask] = 0
    outbound.inflight -= 1
    assert outbound.inflight >= 0
    if outbound.picks is not None:
        drop_pick(outbound, packet_identifier)
    return True
