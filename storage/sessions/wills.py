"""Wills of a partition's connections: which is published, when, and by which edge.

| state | holds | next |
|---|---|---|
| open | its connection stands; the row has no deadline | delayed, firing; gone after DISCONNECT 0x00 |
| delayed | the connection ended; the row has a deadline of the served clock | firing; gone if the session is resumed |
| firing | the row has a number; an edge was told, and is told again, another one when it is dead | gone |

A will fires with the operation that decides so, and an edge is told when that is committed. Every telling has the same
origin, so that the will is published once. Rules: docs/protocol.md section 6; MQTT 5.0 section 3.1.2.5.
"""

from collections.abc import Callable, Iterator

from storage.state import keys
from storage.state.partition import Partition
from storage.state.rows import NEVER, WillRow, pack
from storage.state.timers import FireWillAgain, WillDelayOver
from wire.messages.batches import OriginKind
from wire.messages.wills import FireWill, Will, WillFired

__all__ = ["Wills"]

REPEAT_S = 1.0  # a will whose fan-out is not confirmed is sent again this often


class Wills:
    """The wills of one partition.

    Args:
        partition: The one that holds them.
        live: Takes (tier, number); returns some live node's name, "" if there is none.
    """

    def __init__(self, partition: Partition, live: Callable[[str, int], str]) -> None:
        self._partition = partition
        self._live = live
        self._wills: dict[str, WillRow] = {}  # by client ID; not firing
        self._firing: dict[int, tuple[bytes, WillRow, str]] = {}  # by op_index: key, row, edge it was sent to
        self._numbered = (0, 0)  # op_index of the operation that fired last, number of its last will

    # --- a connection's will

    def restore(self, key: bytes, row: WillRow) -> bool:
        """Take over a will from disk; return whether its connection may still stand."""
        if row.firing:
            self._firing[row.firing] = (key, row, "")
            self._partition.set_timer(self._partition.served_ms, FireWillAgain(row.firing))
            return False
        self._wills[row.client_id] = row
        if row.deadline != NEVER:
            self._partition.set_timer(row.deadline, WillDelayOver(row.client_id))
            return False
        return True

    def of(self, client_id: str) -> Will | None:
        """Return the will that is kept for a client ID."""
        row = self._wills.get(client_id)
        return row.will if row is not None else None

    def add(self, row: WillRow) -> None:
        """Keep the will of a connection that opens with this operation."""
        self._wills[row.client_id] = row
        self._partition.put(keys.will_key(self._partition.number, row.client_id), pack(row))

    def taken_over(self, client_id: str, *, resumed: bool, clean: bool) -> None:
        """Decide the will of a connection that another one follows.

        Args:
            client_id: Of both.
            resumed: The session goes on.
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
            session_s: Seconds after which its session ends: a will waits no longer.
        """
        will = self._wills.get(client_id)
        if will is None or will.owner_epoch != owner_epoch:
            return
        if clean:
            self._discard(client_id)
        else:
            self._delay(will, min(will.will.delay_s, session_s))

    def session_over(self, client_id: str) -> None:
        """Fire a will that was delayed: its session ends [MQTT-3.1.2-8]."""
        will = self._wills.get(client_id)
        if will is not None and will.deadline != NEVER:
            self._fire(will)

    def due(self, client_id: str) -> None:
        """Fire a will whose delay ran out; it may have been cancelled since."""
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
        op_index = self._number()
        will.firing = op_index
        will.firing_epoch = partition.epoch
        key = keys.will_key(partition.number, will.client_id) + op_index.to_bytes(8, "big")
        partition.delete(keys.will_key(partition.number, will.client_id))
        partition.put(key, pack(will))
        partition.count("wills_fired")
        origin = OriginKind.WILL, partition.number << 32 | partition.epoch, op_index
        partition.note("will", "fired", will.client_id, will.will.topic.encode(), origin)
        self._firing[op_index] = (key, will, "")
        self._send(op_index)

    def _number(self) -> int:
        """Return the op_index, or where an operation fires several wills a number that differs in its upper bits."""
        operation = self._partition.meta.op_index + 1
        number = self._numbered[1] + (1 << 32) if self._numbered[0] == operation else operation
        while number in self._firing:
            number += 1 << 32
        self._numbered = operation, number
        return number

    def _send(self, op_index: int) -> None:
        key, will, _ = self._firing[op_index]
        partition = self._partition
        edge = self._live("edge", op_index)
        self._firing[op_index] = (key, will, edge)
        partition.set_timer(partition.deadline_in(REPEAT_S), FireWillAgain(op_index))
        order = FireWill(0, partition.number, will.firing_epoch, op_index, will.will, will.client_id)
        order.owner, order.owner_made = will.owner, will.owner_made
        partition.tell(edge, order)

    def fire_again(self, op_index: int) -> None:
        """Send again a will whose fan-out was not confirmed yet, with the same origin."""
        if op_index in self._firing:
            self._send(op_index)

    def leave(self, edge: str) -> Iterator[None]:
        """Send the wills that a dead edge was publishing to other edges; yields after each."""
        for op_index in sorted(self._firing):
            firing = self._firing.get(op_index)
            if firing is not None and firing[2] == edge:
                self._send(op_index)
                yield

    def fired(self, answer: WillFired, edge: str) -> None:
        """Forget a will whose fan-out is complete, by the word of the edge that it was sent to last."""
        firing = self._firing.get(answer.op_index)
        if firing is not None and firing[2] == edge:
            del self._firing[answer.op_index]
            self._partition.delete(firing[0])

    def waiting(self) -> dict[str, tuple[int, int]]:
        """Return owner_epoch and deadline of each will that does not fire yet, by client ID."""
        return {client_id: (will.owner_epoch, will.deadline) for client_id, will in self._wills.items()}
