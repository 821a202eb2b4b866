"""Root of the control messages: one msgspec struct each, in CONTROL frames, told apart by its tag.

Per-message traffic is not here (``wire/messages/batches.py``). A request carries ``request``, a number of its sender,
and the answer repeats it. Whatever depends on placement carries the epoch it was made under; the receiver acts only at
its own current one and otherwise answers ``Moved`` with the newer. Rules: docs/protocol.md.

``owner_epoch`` is one integer, partition_epoch << 32 | counter, so that it orders as the pair does. A session number is
partition << 48 | counter and is never used again. Lists are batches: all of one turn to one node leaves together.
Ranges of what is decoded stand in the types (``wire/messages/ranges.py``).
"""

import msgspec

__all__ = ["ControlMessage", "name_of"]


class ControlMessage(msgspec.Struct, omit_defaults=True):
    """Root of the control messages. The tag is the format: it stays when a class gets another name."""


def name_of(message: msgspec.Struct) -> str:
    """Return the tag of a message or of a router's command: operators read it in lines and refusals.

    A class may get another name; refusals of commands stand in the routers' snapshots, the same in each.
    """
    return str(type(message).__struct_config__.tag)
