"""Wills of a partition's connections: which is published, when, and by which edge.

| state | stored state | next |
|---|---|---|
| open | its connection is open; the row has no deadline | delayed, firing; deleted after DISCONNECT 0x00 |
| delayed | the connection ended; the row has a served-clock deadline | firing; deleted if the session is resumed |
| firing | the row has a number; an edge has the order to publish it, another edge after its death | deleted |

A will fires with the operation that decides it, and the order leaves when that is committed. Every order of a will has
the same origin. The numbers of wills in flight fit the receivers' windows, so each will is published once. Rules:
docs/protocol.md section 8; MQTT 5.0 section 3.1.2.5.
"""

from collections.abc import Callable

from storage.messages.redispatch import RedispatchQueue
from storage.state import keys
from storage.state.order_window import REFUSED_AGAIN_S, OrderBounds, OrderWindow
from storage.state.partition import Partition
from storage.state.rows import NEVER, WillRow, pack
from storage.state.timers import FireWillAgain, WillDelayOver
from wire.messages.batches import OriginKind
from wire.messages.wills import FireWill, SessionWill, WillFired

__all__ = ["Wills"]

IN_FLIGHT_MAX = 256
IN_FLIGHT_BYTES_MAX = 4 * 1024 * 1024  # of all of them; a single will may exceed it
ROW_BYTES = 256  # of a will without topic, properties and payload, roughly


class Wills:
    """The wills of one partition.

    Args:
        partition: The partition of the wills.
        live: Takes (tier, number); returns a live node's name, "" if there is none.
        redispatches: Redispatches the copies of shared groups.

    Attributes:
        orders: FireWill orders to edges.
    """

    def __init__(self, partition: Partition, live: Callable[[str, int], str], redispatches: RedispatchQueue) -> None:
        self._partition = partition
        self._redispatches = redispatches
        self._wills: dict[str, WillRow] = {}  # by client ID; not firing
        self._firing: dict[int, tuple[bytes, WillRow]] = {}  # by number: key, row
        window = partition.settings.will_window
        self.orders = OrderWindow(
            OrderBounds(min(IN_FLIGHT_MAX, window), IN_FLIGHT_BYTES_MAX, window),
            lambda: live("edge", partition.number),
            self._send,
        )

    # --- a connection's will

    def restore(self, key: bytes, row: WillRow) -> bool:
        """Restore a will from disk; return whether its connection may still be open."""
        if row.firing:
            self._firing[row.firing] = (key, row)
            self.orders.restore(row.firing, _size_of(row))
            return False
        self._wills[row.client_id] = row
        if row.deadline != NEVER:
            self._partition.set_timer(row.deadline, WillDelayOver(row.client_id))
            return False
        return True

    def of(self, client_id: str) -> SessionWill | None:
        """Return the stored will of a client ID that has not fired."""
        row = self._wills.get(client_id)
        return row.will if row is not None else None

    def add(self, row: WillRow) -> None:
        """Store the will of a connection that opens with this operation."""
        self._wills[row.client_id] = row
        self._partition.put(keys.will_key(self._partition.number, row.client_id), pack(row))

    def taken_over(self, client_id: str, *, resumed: bool, clean: bool) -> None:
        """Decide the will of a connection that another one replaces.

        Args:
            client_id: Of both.
            resumed: The session is resumed.
            clean: The older connection ended with DISCONNECT 0x00.
        """
        will = self._wills.get(client_id)
        if will is None:
            return
        if clean or (resumed and will.will.delay_s):  # [MQTT-3.1.3-9]
            self._discard(client_id)
        else:
            self._fire(will)

    def connection_ended(self, client_id: str, owner_epoch: int, *, clean: bool, session_s: int) -> None:
        """Decide the will of a connection that ended.

        Args:
            client_id: Its owner.
            owner_epoch: Of the connection.
            clean: It ended with DISCONNECT 0x00.
            session_s: Seconds until its session ends: the maximum delay of a will.
        """
        will = self._wills.get(client_id)
        if will is None or will.owner_epoch != owner_epoch:
            return
        if clean:
            self._discard(client_id)
        else:
            self._delay(will, min(will.will.delay_s, session_s))

    def session_over(self, client_id: str) -> None:
        """Fire a delayed will because its session ends [MQTT-3.1.2-8]."""
        will = self._wills.get(client_id)
        if will is not None and will.deadline != NEVER:
            self._fire(will)

    def due(self, client_id: str) -> None:
        """Fire a will whose delay has passed; it may have been cancelled since."""
        will = self._wills.get(client_id)
        if will is not None and will.deadline != NEVER and will.deadline <= self._partition.served_ms:
            self._fire(will)

    def _discard(self, client_id: str) -> None:
        self._partition.note_claims()
        del self._wills[client_id]
        self._partition.delete(keys.will_key(self._partition.number, client_id))

    def _delay(self, will: WillRow, delay_s: int) -> None:
        if delay_s <= 0:
            self._fire(will)
            return
        partition = self._partition
        will.deadline = partition.deadline_in(delay_s)
        partition.put(keys.will_key(partition.number, will.client_id), pack(will))
        partition.set_timer(will.deadline, WillDelayOver(will.client_id))

    # --- firing

    def _fire(self, will: WillRow) -> None:
        """Make the will ``firing`` with this operation; it is sent to an edge when that is committed."""
        partition = self._partition
        partition.note_claims()
        del self._wills[will.client_id]
        number = partition.meta.next_will
        partition.meta.next_will += 1
        will.firing = number
        will.firing_epoch = partition.epoch
        key = keys.will_key(partition.number, will.client_id) + number.to_bytes(8, "big")
        partition.delete(keys.will_key(partition.number, will.client_id))
        partition.put(key, pack(will))
        partition.count("wills_fired")
        origin = OriginKind.WILL, partition.number << 32 | partition.epoch, number
        partition.note("will", "fired", will.client_id, will.will.topic.encode(), origin)
        self._firing[number] = (key, will)
        self.orders.add(number, _size_of(will))
        self.send_some()

    def _send(self, number: int, edge: str) -> bool:
        _, will = self._firing[number]
        partition = self._partition
        order = FireWill(0, partition.number, will.firing_epoch, number, will.will, will.client_id)
        order.owner, order.owner_made = will.owner, will.owner_made
        partition.send_control(edge, order)
        return True

    def fire_again(self, number: int) -> None:
        """Order a will again that an edge could not publish to all receivers, with the same origin."""
        self.orders.send_again(number)

    def fired(self, answer: WillFired, edge: str) -> None:
        """Delete a will once the edge with its order reports the fan-out as complete."""
        partition = self._partition
        if not self.orders.is_at(answer.number, edge):
            return
        if answer.again:
            partition.count("wills_ordered_again")
            partition.set_timer(partition.deadline_in(REFUSED_AGAIN_S), FireWillAgain(answer.number))
            return
        key, row = self._firing.pop(answer.number)
        partition.delete(key)
        for share in answer.shares:
            self._redispatches.keep_will(row.will, share, answer.properties)
        self._redispatches.send_some()
        self.orders.finish(answer.number)
        self.send_some()

    def send_some(self) -> None:
        """Send orders up to the in-flight bounds, unless too many shared group copies wait for members."""
        if not self._redispatches.is_filling:
            self.orders.send_some()

    def waiting(self) -> dict[str, tuple[int, int]]:
        """Return owner_epoch and deadline of each will that has not fired, by client ID."""
        return {client_id: (will.owner_epoch, will.deadline) for client_id, will in self._wills.items()}


def _size_of(row: WillRow) -> int:
    will = row.will
    return len(will.topic) + len(will.payload) + len(will.properties) + ROW_BYTES
