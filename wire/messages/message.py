"""Root of the control messages: one tagged msgspec struct each, in CONTROL frames.

PUBLISH traffic is in ``wire/messages/batches.py``. A request carries ``request``, a number of its sender, and the
answer repeats it. A message that depends on placement carries the epoch of its sender's map. The receiver acts only in
its own current epoch and otherwise answers ``Moved`` with the newer one. Rules: docs/protocol.md.

``owner_epoch`` is one integer, partition_epoch << 32 | counter, so that it orders as the pair does. A session number is
partition << 48 | counter and is never reused. Lists are batches: all items of one iteration to one node leave together.
The ranges of decoded values are in the types (``wire/messages/ranges.py``).
"""

import msgspec

__all__ = ["ControlMessage", "name_of"]


class ControlMessage(msgspec.Struct, omit_defaults=True):
    """Root of the control messages. The tag is the format: it stays when a class gets another name."""


def name_of(message: msgspec.Struct) -> str:
    """Return the tag of a message or of a router's command, as shown to operators in lines and refusals.

    Class names may change, tags do not: refusals of commands are stored in the routers' snapshots, which must agree.
    """
    return str(type(message).__struct_config__.tag)
