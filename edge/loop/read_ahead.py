"""Input of a parked connection: data only, ``edge/loop/parked_input.py`` has the functions."""

from collections import deque

__all__ = ["ReadAhead"]


class ReadAhead:
    """Bytes of one connection behind ``Conn.partial``, and how far they were scanned."""

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.bytes = 0  # of the pieces
        self.scanned = 0  # up to here every PINGREQ is answered; beyond the last byte while a packet is incomplete
        self.prefetched = 0  # up to here Routes of topics are requested
        self.pings = 0  # PINGREQs that are answered and not parsed yet
        self.opaque = False  # the rest is not scanned: it is malformed, or stands behind the end of the session
