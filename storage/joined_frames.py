"""Output of one turn, joined into as few frames as may be: a frame costs both ends more than a record in it.

Records of one kind to one node share a frame. PUSH, PUBLISH_ACK and PUBLISH say nothing about one another (what each
shows is committed), so those of a turn may change places; a control message overtakes none of them and none overtakes
it. A frame is closed well below what a link takes.
"""

from collections.abc import Iterable

from storage.state.partition import Output
from wire.messages.frames import FrameKind

__all__ = ["joined_frames"]

WHOLE_MESSAGES = frozenset((FrameKind.CONTROL, FrameKind.REPLICATE, FrameKind.REPLICATE_ACK))  # one message per frame
FRAME_BYTES = 1024 * 1024  # beyond it the next record begins another frame; one record alone may be larger


def joined_frames(sends: Iterable[Output]) -> list[Output]:
    """Return the frames of a turn in the order in which they leave."""
    frames: list[tuple[str, int, list[bytes]]] = []
    growing: dict[str, dict[int, tuple[list[bytes], int]]] = {}  # node -> kind -> its frame, bytes
    for node, kind, payload in sends:
        of_node = growing.get(node)
        if of_node is None:
            of_node = growing[node] = {}
        if kind in WHOLE_MESSAGES:
            of_node.clear()
            frames.append((node, kind, [payload]))
            continue
        batch = of_node.get(kind)
        if batch is not None and batch[1] + len(payload) <= FRAME_BYTES:
            batch[0].append(payload)
            of_node[kind] = (batch[0], batch[1] + len(payload))
            continue
        records = [payload]
        of_node[kind] = (records, len(payload))
        frames.append((node, kind, records))
    return [(node, kind, records[0] if len(records) == 1 else b"".join(records)) for node, kind, records in frames]
