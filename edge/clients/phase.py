"""The phases of a client's connection, what holds in each, and the ways out.

NEW:
    No packet was read; nothing is known but the listener, and the address that a trusted PROXY header named.
    -> CONNECT: AUTHENTICATING; anything else, or no CONNECT in time: ENDED.
AUTHENTICATING:
    CONNECT was read and may be let in, if the listener's chain lets it in; no CONNACK was sent, nothing is claimed.
    Packets that come now wait unread, but for AUTH where the chain waits for one.
    -> the chain lets it in: OPENING; it refuses, another packet than AUTH comes, or the connect timeout is over: ENDED.
OPENING:
    Who it is is decided; the client ID is being claimed at its partition, or waits for the lease, for company
    or for a primary. Packets that come now wait unread. No CONNACK was sent.
    -> the partition answers "opened", and the chain's decision still stands: OPEN; it does not: the chain runs again,
       or ENDED; the partition refuses, or the connect timeout is over: ENDED.
OPEN:
    CONNACK 0x00 was written; ``owner_epoch`` and ``session`` are the partition's answer; the loop serves
    PUBLISH and acknowledgements by itself.
    -> DISCONNECT, an error, silence, take-over, or the end of the socket: ENDED.
ENDED:
    No packet counts any more. A connection that was OPEN is reported to its partition: at once where it leaves
    a session or a will, with the next claims otherwise. A client that said DISCONNECT 0x00 and has a will keeps
    its socket until the report is answered (``leaves_at``).
    -> none; the record goes with the socket.

A connection that ends in OPENING may have its claim carried out later: the answer finds it closed and is reported as
an end (``Connecting.opened``). No phase follows ENDED for all that.
"""

__all__ = ["WAYS", "ClientPhase"]


class ClientPhase:
    """Names of the phases."""

    NEW = "new"
    AUTHENTICATING = "authenticating"
    OPENING = "opening"
    OPEN = "open"
    ENDED = "ended"


WAYS: dict[str, tuple[str, ...]] = {
    ClientPhase.NEW: (ClientPhase.AUTHENTICATING, ClientPhase.ENDED),
    ClientPhase.AUTHENTICATING: (ClientPhase.OPENING, ClientPhase.ENDED),
    ClientPhase.OPENING: (ClientPhase.OPEN, ClientPhase.ENDED),
    ClientPhase.OPEN: (ClientPhase.ENDED,),
    ClientPhase.ENDED: (ClientPhase.ENDED,),
}
