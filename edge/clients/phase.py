"""The phases of a client's connection, their invariants and transitions.

NEW:
    No packet was read. Only the listener is known, and the address of a trusted PROXY header.
    -> CONNECT: AUTHENTICATING; another packet, or no CONNECT in time: ENDED.
AUTHENTICATING:
    CONNECT was read and the listener's chain decides; no CONNACK was sent, no client ID is claimed. Later packets stay
    unread, except AUTH if the chain waits for one.
    -> the chain accepts: OPENING; it refuses, a packet other than AUTH comes, or the connect timeout expires: ENDED.
OPENING:
    The identity is decided; the claim of the client ID is sent to its partition, or waits for the lease, its batch or a
    primary. Later packets stay unread. No CONNACK was sent.
    -> the partition accepts, and the chain's decision is still valid: OPEN; it is not: the chain runs again, or ENDED;
        the partition refuses, or the connect timeout expires: ENDED.
OPEN:
    CONNACK 0x00 was written; ``owner_epoch`` and ``session`` are from the partition's response; the loop handles
    PUBLISH and acknowledgements by itself.
    -> DISCONNECT, an error, keep-alive timeout, takeover, or the end of the socket: ENDED.
ENDED:
    Packets are ignored. The end of an OPEN connection is reported to its partition: at once if it had a session or a
    will, otherwise with the next claims. A client with a will that sent DISCONNECT 0x00 keeps its socket until the
    report is answered (``close_by``).
    -> none; the record is removed with the socket.

The claim of a connection that ends in OPENING may be committed later. Its response finds the connection closed and is
reported as an end (``Connecting.opened``); the phase stays ENDED.
"""

__all__ = ["TRANSITIONS", "ClientPhase"]


class ClientPhase:
    """Names of the phases."""

    NEW = "new"
    AUTHENTICATING = "authenticating"
    OPENING = "opening"
    OPEN = "open"
    ENDED = "ended"


TRANSITIONS: dict[str, tuple[str, ...]] = {
    ClientPhase.NEW: (ClientPhase.AUTHENTICATING, ClientPhase.ENDED),
    ClientPhase.AUTHENTICATING: (ClientPhase.OPENING, ClientPhase.ENDED),
    ClientPhase.OPENING: (ClientPhase.OPEN, ClientPhase.ENDED),
    ClientPhase.OPEN: (ClientPhase.ENDED,),
    ClientPhase.ENDED: (ClientPhase.ENDED,),
}
