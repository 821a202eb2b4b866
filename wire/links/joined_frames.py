"""Joins the output of an iteration into few frames: a frame costs both ends more than a record in it.

Records of one kind to one node share a frame. PUSH, PUBLISH_ACK and PUBLISH are independent (each reports committed
state), so those of an iteration may be reordered. No record overtakes a control message, or is overtaken by one.
Successive control messages to an edge share a CONTROLS frame, and answers to claims share one of theirs. A frame is
closed far below the limit of a link.
"""

from collections.abc import Iterable, Mapping

from wire.messages.cluster_map import NodeEntry
from wire.messages.control import CONTROLS_BYTES, CONTROLS_MAX, join_controls
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE

__all__ = ["joined_frames"]

Output = tuple[str, int, bytes]  # node, frame kind, payload

WHOLE_MESSAGES = frozenset((FrameKind.REPLICATE, FrameKind.REPLICATE_ACK))  # one message per frame
ORDERED = (FrameKind.CONTROL, FrameKind.CONNECT_ANSWERS)  # no record of another kind overtakes them
FRAME_BYTES = 1024 * 1024  # beyond it the next record starts another frame; a single record may be larger


class _Growing:
    """The frame of one kind that a node's next record may join."""

    __slots__ = ("octets", "records")

    def __init__(self, payload: bytes) -> None:
        self.records = [payload]
        self.octets = len(payload)

    def take(self, payload: bytes, octets_max: int, records_max: int) -> bool:
        """Add one record; return False if it does not fit."""
        if self.octets + len(payload) > octets_max or len(self.records) >= records_max:
            return False
        self.records.append(payload)
        self.octets += len(payload)
        return True


def joined_frames(sends: Iterable[Output], nodes: Mapping[str, NodeEntry]) -> list[Output]:
    """Return the frames of an iteration in sending order.

    Args:
        sends: Of one iteration, in order.
        nodes: Of the map: only edges are sent CONTROLS frames.
    """
    frames: list[tuple[str, int, list[bytes]]] = []
    growing: dict[str, dict[int, _Growing]] = {}  # node -> kind -> its frame
    for node, kind, payload in sends:
        of_node = growing.get(node)
        if of_node is None:
            of_node = growing[node] = {}
        if kind in WHOLE_MESSAGES:
            of_node.clear()
            frames.append((node, kind, [payload]))
            continue
        batch = of_node.get(kind)
        if kind in ORDERED:
            if batch is not None and batch.take(payload, CONTROLS_BYTES, CONTROLS_MAX):
                continue
            of_node.clear()
            batch = _Growing(payload)
            entry = nodes.get(node)
            if kind == FrameKind.CONNECT_ANSWERS or (entry is not None and entry.tier == TIER_EDGE):
                of_node[kind] = batch
        else:
            for ordered in ORDERED:
                of_node.pop(ordered, None)
            if batch is not None and batch.take(payload, FRAME_BYTES, FRAME_BYTES):
                continue
            batch = of_node[kind] = _Growing(payload)
        frames.append((node, kind, batch.records))
    return [_frame(node, kind, records) for node, kind, records in frames]


def _frame(node: str, kind: int, records: list[bytes]) -> Output:
    if kind == FrameKind.CONNECT_ANSWERS:
        return node, kind, join_controls(records)
    if len(records) == 1:
        return node, kind, records[0]
    if kind == FrameKind.CONTROL:
        return node, FrameKind.CONTROLS, join_controls(records)
    return node, kind, b"".join(records)
