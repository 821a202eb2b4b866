# ruff: noqa: F821
"""System calls of the loop besides reading and writing, each once in C and once in Python.

Covers the clock of leases, accept, half-close, the receive buffer and the limit of descriptors. It decides nothing.
"""

import contextlib
import fcntl
import resource
import socket
import termios
import time
from typing import TYPE_CHECKING

import cython

if not cython.compiled and TYPE_CHECKING:  # the C names of linux.pxd and libc
    from edge.loop.linux import (
        CLOCK_BOOTTIME,
        EAGAIN,
        ECONNABORTED,
        ECONNREFUSED,
        ECONNRESET,
        EINTR,
        EPIPE,
        FIONREAD,
        SHUT_WR,
        accept_from,
        clock_gettime,
        errno,
        ioctl,
        shutdown,
        timespec,
    )

__all__ = ["boot_ns", "connections_allowed"]

if not cython.compiled:  # compiled, this is a C constant: descriptors.pxd
    NO_CONNECTION = -2  # of accept_one

RESERVED_FILES = 320  # links, pending ones (conf/admission.py), logs, listeners, trio


def boot_ns() -> cython.longlong:
    """Return CLOCK_BOOTTIME, the clock of leases."""
    if cython.compiled:  # pragma: no cover
        now: timespec
        clock_gettime(CLOCK_BOOTTIME, cython.address(now))
        return cython.cast(cython.longlong, now.tv_sec) * 1_000_000_000 + now.tv_nsec
    else:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def connections_allowed() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one; return it and the connections that it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, max(0, soft - RESERVED_FILES)


def bytes_waiting(fd: cython.int) -> cython.Py_ssize_t:
    """Return the number of bytes in the kernel's receive buffer."""
    if cython.compiled:  # pragma: no cover
        count: cython.int = 0
        ioctl(fd, FIONREAD, cython.address(count))
        return count
    else:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")


def accept_one(fd: cython.int, listener: socket.socket) -> tuple[int, str, int]:
    """Accept one connection.

    Returns:
        A non-blocking descriptor, and address and port of its peer, "" if that is no IP address. The descriptor is
    ``NO_CONNECTION`` without a pending connection, -1 if accept failed.
    """
    if cython.compiled:  # pragma: no cover
        text: cython.char[64]  # INET6_ADDRSTRLEN is 46
        port: cython.int = 0
        taken: cython.int = accept_from(fd, text, cython.address(port))
        if taken >= 0:
            return taken, cython.cast(bytes, text).decode("ascii"), port
        if errno in (EAGAIN, EINTR, ECONNABORTED, ECONNREFUSED, ECONNRESET, EPIPE):
            return NO_CONNECTION, "", 0
        return -1, "", 0
    else:
        try:
            accepted, peer = listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return NO_CONNECTION, "", 0
        except OSError:
            return -1, "", 0
        accepted.setblocking(False)
        host, port = peer[:2] if isinstance(peer, tuple) else ("", 0)
        return accepted.detach(), host, port


def half_close(fd: cython.int) -> cython.bint:
    """Half-close a descriptor that stays open; False if it is no longer connected."""
    if cython.compiled:  # pragma: no cover
        return shutdown(fd, SHUT_WR) == 0
    else:
        borrowed = socket.socket(fileno=fd)
        try:
            borrowed.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        finally:
            borrowed.detach()
        return True
