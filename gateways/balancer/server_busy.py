"""Classification of errors that mean this process or host lacks resources: no edge and no client is at fault."""

import errno

__all__ = ["is_resource_exhausted"]

EXHAUSTED = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,  # no free local port
    errno.ETOOMANYREFS,  # too many passed descriptors in flight
)


def is_resource_exhausted(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is a lack of local resources.

    trio groups the errors of several addresses: then each must be one. A host without IPv6 reports for ::1 the same
    error as without a free port, even if the edge is reachable at the other address.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_resource_exhausted(each) for each in error.exceptions)
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        return True
    return error is not None and is_resource_exhausted(error.__cause__)
