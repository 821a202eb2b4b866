"""Input of a parked connection: data only, ``edge/loop/parked_input.py`` has the functions."""

from collections import deque

__all__ = ["ReadAhead"]


class ReadAhead:
    """Bytes of one connection behind ``LoopConnection.partial``, and the position up to which they were scanned."""

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.bytes = 0  # of the pieces
        self.scanned = 0  # end of answered PINGREQs; beyond the last byte while a packet is incomplete
        self.prefetched = 0  # end of topics whose Routes are requested
        self.pings = 0  # answered PINGREQs that are not parsed yet
        self.opaque = False  # the rest is not scanned: it is malformed, or behind the end of the session
