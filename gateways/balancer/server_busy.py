"""Which errors say that this process, or this host, has no room for a connection: no edge and no client is at fault."""

import errno

__all__ = ["is_no_room"]

NO_ROOM = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,  # no local port is free
    errno.ETOOMANYREFS,  # descriptors that were handed over and not taken yet
)


def is_no_room(error: BaseException | None) -> bool:
    """Whether an error is one, or was caused by one.

    trio puts those of several addresses in a group: then each must be one. A host without IPv6 says of ::1 what it says
    without a free port, whether or not an edge is at the other address.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_no_room(each) for each in error.exceptions)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    return error is not None and is_no_room(error.__cause__)
