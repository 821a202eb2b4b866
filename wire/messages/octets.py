"""Bytes of binary records, written and read with C integers, for modules that are compiled outside the edge's loop.

Compiled, ``Octets`` owns C memory; uncompiled it owns a ``bytearray``. All numbers are big endian. Bytes are appended
only, and memory grows on demand. C names (memcpy ...) come from ``octets.pxd``.
"""

from typing import TYPE_CHECKING, Any

import cython

if not cython.compiled and TYPE_CHECKING:  # the C names of libc
    from wire.messages.c_memory import free, memcpy, realloc

__all__ = ["Octets"]

if not cython.compiled:  # compiled, this is a C constant: octets.pxd
    OCTETS_KEPT = 16_384  # of memory that an empty ``Octets`` keeps


class Octets:
    """A growing buffer of bytes."""

    def __init__(self) -> None:
        self.used = 0
        self.capacity = 0
        if not cython.compiled:
            self.data: Any = bytearray()
        else:  # pragma: no cover
            self.data = cython.cast(cython.p_uchar, cython.NULL)

    def __dealloc__(self) -> None:
        if cython.compiled:  # pragma: no cover
            free(self.data)


def make_room(octets: Octets, count: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Reserve ``count`` more bytes; return their offset."""
    capacity: cython.Py_ssize_t
    if octets.used + count > octets.capacity:
        capacity = octets.capacity * 2 if octets.capacity else 512
        while capacity < octets.used + count:
            capacity *= 2
        if cython.compiled:  # pragma: no cover
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(octets.data, capacity))
            if grown == cython.NULL:
                raise MemoryError
            octets.data = grown
        else:
            octets.data.extend(bytes(capacity - octets.capacity))
        octets.capacity = capacity
    return octets.used


def add8(octets: Octets, value: cython.uint) -> cython.int:
    """Append a u8."""
    at: cython.Py_ssize_t = make_room(octets, 1)
    octets.data[at] = value & 0xFF
    octets.used = at + 1
    return 0


def add16(octets: Octets, value: cython.uint) -> cython.int:
    """Append a u16."""
    at: cython.Py_ssize_t = make_room(octets, 2)
    octets.data[at] = (value >> 8) & 0xFF
    octets.data[at + 1] = value & 0xFF
    octets.used = at + 2
    return 0


def add32(octets: Octets, value: cython.ulong) -> cython.int:
    """Append a u32."""
    add16(octets, (value >> 16) & 0xFFFF)
    return add16(octets, value & 0xFFFF)


def add64(octets: Octets, value: cython.ulonglong) -> cython.int:
    """Append a u64."""
    add32(octets, (value >> 32) & 0xFFFFFFFF)
    return add32(octets, value & 0xFFFFFFFF)


def add_span(octets: Octets, source: cython.p_uchar, start: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.int:
    """Append ``source[start : start + count]``; the source is never the memory of ``octets``."""
    at: cython.Py_ssize_t = make_room(octets, count)
    if cython.compiled:  # pragma: no cover
        memcpy(octets.data + at, source + start, count)
    else:
        octets.data[at : at + count] = source[start : start + count]
    octets.used = at + count
    return 0


def add_bytes(octets: Octets, source: bytes) -> cython.int:
    """Append a ``bytes`` object."""
    return add_span(octets, source, 0, len(source))


def take_all(octets: Octets) -> bytes:
    """Return the written bytes, and clear the buffer."""
    taken: bytes
    if cython.compiled:  # pragma: no cover
        taken = octets.data[: octets.used]
    else:
        taken = bytes(octets.data[: octets.used])
    octets.used = 0
    if octets.capacity > OCTETS_KEPT:
        if cython.compiled:  # pragma: no cover
            free(octets.data)
            octets.data = cython.cast(cython.p_uchar, cython.NULL)
        else:
            octets.data = bytearray()
        octets.capacity = 0
    return taken


def get16(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.uint:
    """Read a u16."""
    return (cython.cast(cython.uint, data[position]) << 8) | data[position + 1]


def get32(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.ulong:
    """Read a u32."""
    return (cython.cast(cython.ulong, get16(data, position)) << 16) | get16(data, position + 2)


def get64(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.ulonglong:
    """Read a u64."""
    return (cython.cast(cython.ulonglong, get32(data, position)) << 32) | get32(data, position + 4)
