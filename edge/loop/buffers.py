# cython: cdivision=True
"""Output buffers, and the few operations that access memory by pointer.

Compiled, a ``Buffer`` owns C memory and positions are offsets into it; uncompiled it owns a ``bytearray``. All
functions with separate compiled and uncompiled branches of pointer arithmetic are here, so other modules read the same
in both forms. The module does not know MQTT. C names (memcpy ...) come from ``buffers.pxd``.
"""

from typing import TYPE_CHECKING, Any

import cython

if not cython.compiled and TYPE_CHECKING:  # the C names of linux.pxd and libc
    from edge.loop.linux import free, malloc, memcmp, memcpy, memmove, realloc

__all__ = ["Buffer", "Pool"]

if not cython.compiled:  # compiled, these are C constants: buffers.pxd
    BUFFER_BYTES = 4096  # of a pooled buffer; larger ones are freed instead of pooled
    POOL_BUFFERS_MAX = 1024

DIGITS_MAX = 20  # of a u64


class Buffer:
    """Growable bytes: ``start`` is the first byte not yet taken, ``end`` is behind the last one."""

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        self.start = 0
        self.end = 0
        self.capacity = capacity
        self.next: Buffer | None = None  # in the pool
        if not cython.compiled:
            self.data: Any = bytearray(capacity)
        else:  # pragma: no cover
            self.data = cython.cast(cython.p_uchar, malloc(capacity))
            if self.data == cython.NULL:
                raise MemoryError

    def __dealloc__(self) -> None:
        if cython.compiled:  # pragma: no cover
            free(self.data)


class Pool:
    """Idle buffers of the common size: a connection has one only while it has output."""

    def __init__(self) -> None:
        self.first: Buffer | None = None  # linked: a Python list is reallocated each time it empties and fills
        self.count = 0
        self.count_max = POOL_BUFFERS_MAX


def take_buffer(pool: Pool) -> Buffer:
    """Return an empty buffer."""
    buffer: Buffer | None = pool.first
    if buffer is None:
        return Buffer(BUFFER_BYTES)
    pool.first = buffer.next
    pool.count -= 1
    buffer.next = None
    return buffer


def give_buffer(pool: Pool, buffer: Buffer) -> None:
    """Return a buffer to the pool; its bytes are discarded."""
    if buffer.capacity == BUFFER_BYTES and pool.count < pool.count_max:
        buffer.start = 0
        buffer.end = 0
        buffer.next = pool.first
        pool.first = buffer
        pool.count += 1


def reserve(buffer: Buffer, count: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Reserve ``count`` bytes behind ``end`` and return ``end``; bytes move to the front if that is enough.

    Earlier positions are invalid afterwards.
    """
    used: cython.Py_ssize_t = buffer.end - buffer.start
    capacity: cython.Py_ssize_t
    if buffer.end + count <= buffer.capacity:
        return buffer.end
    if buffer.start > 0:
        if cython.compiled:  # pragma: no cover
            memmove(buffer.data, buffer.data + buffer.start, used)
        else:
            buffer.data[:used] = buffer.data[buffer.start : buffer.end]
        buffer.start = 0
        buffer.end = used
    if used + count > buffer.capacity:
        capacity = buffer.capacity * 2
        while capacity < used + count:
            capacity *= 2
        if cython.compiled:  # pragma: no cover
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(buffer.data, capacity))
            if grown == cython.NULL:
                raise MemoryError
            buffer.data = grown
        else:
            buffer.data.extend(bytes(capacity - buffer.capacity))
        buffer.capacity = capacity
    return buffer.end


def append_span(
    buffer: Buffer, source: cython.p_uchar, start: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> cython.int:
    """Append ``source[start : start + count]``; the source is never the buffer's own memory."""
    end: cython.Py_ssize_t = reserve(buffer, count)
    if cython.compiled:  # pragma: no cover
        memcpy(buffer.data + end, source + start, count)
    else:
        buffer.data[end : end + count] = source[start : start + count]
    buffer.end = end + count
    return 0


def append_bytes(buffer: Buffer, source: bytes) -> cython.int:
    """Append a ``bytes`` object."""
    return append_span(buffer, source, 0, len(source))


def append_decimal(buffer: Buffer, value: cython.ulonglong) -> cython.int:
    """Append a number as decimal digits."""
    at: cython.Py_ssize_t = reserve(buffer, DIGITS_MAX)
    rest: cython.ulonglong = value // 10
    at += 1
    while rest:
        at += 1
        rest //= 10
    buffer.end = at
    while True:
        at -= 1
        rest = value // 10
        buffer.data[at] = 48 + cython.cast(cython.uchar, value - rest * 10)
        value = rest
        if value == 0:
            return 0


def take_bytes(buffer: Buffer, count: cython.Py_ssize_t) -> bytes:
    """Remove and return up to ``count`` bytes."""
    start: cython.Py_ssize_t = buffer.start
    stop: cython.Py_ssize_t = buffer.end
    if stop - start > count:
        stop = start + count
    taken: bytes
    if cython.compiled:  # pragma: no cover
        taken = buffer.data[start:stop]
    else:
        taken = bytes(buffer.data[start:stop])
    buffer.start = stop
    if stop == buffer.end:
        buffer.start = 0
        buffer.end = 0
    return taken


def same_bytes(data: cython.p_uchar, start: cython.Py_ssize_t, other: bytes) -> cython.bint:
    """Return whether ``data`` holds ``other`` at ``start``; the caller guarantees enough bytes."""
    if cython.compiled:  # pragma: no cover
        return memcmp(data + start, cython.cast(cython.p_uchar, other), len(other)) == 0
    else:
        return data[start : start + len(other)] == other


def copy_bytes(buffer: Buffer, position: cython.Py_ssize_t, source: bytes) -> cython.int:
    """Overwrite reserved bytes at ``position``."""
    return copy_span(buffer, position, source, 0, len(source))


def copy_span(
    buffer: Buffer,
    position: cython.Py_ssize_t,
    source: cython.p_uchar,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
) -> cython.int:
    """Overwrite reserved bytes at ``position`` with ``source[start : start + count]``."""
    if cython.compiled:  # pragma: no cover
        memcpy(buffer.data + position, source + start, count)
    else:
        buffer.data[position : position + count] = source[start : start + count]
    return 0


def put16(buffer: Buffer, position: cython.Py_ssize_t, value: cython.uint) -> cython.int:
    """Write a big-endian u16 into reserved bytes."""
    data: cython.p_uchar = buffer.data
    data[position] = (value >> 8) & 0xFF
    data[position + 1] = value & 0xFF
    return 0


def put32(buffer: Buffer, position: cython.Py_ssize_t, value: cython.ulong) -> cython.int:
    """Write a big-endian u32."""
    put16(buffer, position, (value >> 16) & 0xFFFF)
    put16(buffer, position + 2, value & 0xFFFF)
    return 0


def put64(buffer: Buffer, position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.int:
    """Write a big-endian u64."""
    put32(buffer, position, (value >> 32) & 0xFFFFFFFF)
    put32(buffer, position + 4, value & 0xFFFFFFFF)
    return 0


def get16(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.uint:
    """Read a big-endian u16."""
    return (cython.cast(cython.uint, data[position]) << 8) | data[position + 1]


def get32(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.ulong:
    """Read a big-endian u32."""
    return (cython.cast(cython.ulong, get16(data, position)) << 16) | get16(data, position + 2)


def get64(data: cython.p_uchar, position: cython.Py_ssize_t) -> cython.ulonglong:
    """Read a big-endian u64."""
    return (cython.cast(cython.ulonglong, get32(data, position)) << 32) | get32(data, position + 4)


def varint_end(data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position behind the Variable Byte Integer at ``at`` [MQTT 5.0 1.5.5].

    It is not in its shortest form if it has more than one byte and the last one is 0 [MQTT-1.5.5-1].

    Returns:
        -1 if its end is not before ``end``, -2 if it is longer than four bytes.
    """
    stop: cython.Py_ssize_t = at
    while stop < end:
        stop += 1
        if data[stop - 1] < 0x80:
            return stop
        if stop - at == 4:
            return -2
    return -1


def read_varint(data: cython.p_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Read the Variable Byte Integer from ``at`` to its ``varint_end``."""
    value: cython.Py_ssize_t = 0
    while stop > at:
        stop -= 1
        value = (value << 7) | (data[stop] & 0x7F)
    return value
