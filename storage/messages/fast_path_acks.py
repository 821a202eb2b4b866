"""PUBACKs of subscribers, processed in a frame's bytes without an object for each of them.

A PUBACK of an in-flight QoS 1 message on the connection that owns its session consumes the entry.
``InFlightEntries.acknowledged`` processes all other records of a PUSH_ACK frame and has all rules. Compiled:
``fast_path_acks.pxd``.
"""

from collections.abc import Callable

import cython

from storage.messages.consumed import Consumed
from storage.messages.outbound import InFlightEntries
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from storage.state.session_window import InFlight, SessionWindow
from wire.messages.batches import PushAck, decode_push_acks

if not cython.compiled:
    from storage.state.session_window import is_caught_up, release_place
    from wire.messages.octets import get64

__all__ = ["AckHandler", "FastPathAcks"]

if not cython.compiled:  # compiled, these are C constants: fast_path_acks.pxd
    PUSH_ACK = 30
    OWNER_EPOCH_AT, SEQ_AT, TYPE_AT, CODE_AT = 8, 20, 28, 29
    PUBACK = 4


class FastPathAcks:
    """Acknowledgements to one partition."""

    def __init__(self, partition: Partition, consumed: Consumed, outbound: InFlightEntries) -> None:
        self.partition = partition
        self.sessions = partition.sessions
        self.consumed = consumed
        self.outbound = outbound
        self.acks_per_row = partition.settings.acks_per_row


class AckHandler:
    """Processes PUSH_ACK frames of edges.

    Args:
        get_fast_path: Returns the fast path of a partition that accepts acknowledgements now, else None.
        others: Processes all other acknowledgements.
    """

    def __init__(self, get_fast_path: Callable[[int], FastPathAcks | None], others: Callable[[PushAck], None]) -> None:
        self.get_fast_path = get_fast_path
        self.others = others

    def take(self, payload: bytes, node: str, incarnation: int) -> None:
        """Process the acknowledgements of a frame, all of them or none.

        Args:
            payload: Of the frame.
            node: The edge that sent it.
            incarnation: The edge's.

        Raises:
            Unreadable: The payload is not a whole number of records.
        """
        data: cython.p_uchar = payload
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t = len(payload)
        if end % PUSH_ACK:
            decode_push_acks(payload)  # raises Unreadable
        number: cython.ulonglong
        fast_paths: dict[int, FastPathAcks | None] = {}
        fast_path: FastPathAcks | None
        while at < end:
            number = get64(data, at) >> 48
            fast_path = fast_paths.get(number)
            if fast_path is None and number not in fast_paths:
                fast_path = self.get_fast_path(number)
                fast_paths[number] = fast_path
            if fast_path is None or not process_puback(fast_path, data, at, node, incarnation):
                self.others(decode_push_acks(payload[at : at + PUSH_ACK])[0])
            at += PUSH_ACK


def process_puback(
    fast_path: FastPathAcks, data: cython.p_uchar, at: cython.Py_ssize_t, node: str, incarnation: cython.ulonglong
) -> cython.bint:
    """Consume the entry of a PUBACK; return False, without effect, for another acknowledgement."""
    number: cython.ulonglong = get64(data, at)
    owner: DurableSession | None = fast_path.sessions.get(number)
    if owner is None:
        return False
    session: SessionWindow = owner
    if data[at + TYPE_AT] != PUBACK or session.owner_epoch != get64(data, at + OWNER_EPOCH_AT):
        return False
    if session.edge != node or session.incarnation != incarnation or session._inflight is None:
        return False
    session_seq: cython.ulonglong = get64(data, at + SEQ_AT)
    flight: InFlight | None = session._inflight.get(session_seq)
    if flight is None or flight.qos != 1 or flight.body:
        return False
    if flight.traced and fast_path.partition.tracing is not None:
        fast_path.partition.tracing.acked(fast_path.partition.number, owner, session_seq, PUBACK, data[at + CODE_AT])
    if release_place(session, session_seq, flight) >= fast_path.acks_per_row or number not in fast_path.consumed.lazy:
        fast_path.consumed.note(owner, 0)
    if not is_caught_up(session) or fast_path.outbound.groups.rest:
        fast_path.outbound.free(owner)
    return True
