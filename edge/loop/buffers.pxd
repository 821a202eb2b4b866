# C form of buffers.py.
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove


cdef enum:
    BUFFER_BYTES = 4096
    POOL_BUFFERS_MAX = 1024


cdef class Buffer:
    cdef unsigned char* data
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef Py_ssize_t capacity
    cdef Buffer next


cdef class Pool:
    cdef Buffer first
    cdef Py_ssize_t count
    cdef Py_ssize_t count_max


cdef Buffer take_buffer(Pool pool)
cdef object give_buffer(Pool pool, Buffer buffer)
cdef Py_ssize_t reserve(Buffer buffer, Py_ssize_t count) except -1
cdef int append_span(Buffer buffer, unsigned char* source, Py_ssize_t start, Py_ssize_t count) except -1
cdef int append_bytes(Buffer buffer, bytes source) except -1
cdef int append_decimal(Buffer buffer, unsigned long long value) except -1
cdef bytes take_bytes(Buffer buffer, Py_ssize_t count)
cdef bint same_bytes(unsigned char* data, Py_ssize_t start, bytes other) noexcept
cdef int copy_bytes(Buffer buffer, Py_ssize_t position, bytes source) except -1
cdef int copy_span(Buffer buffer, Py_ssize_t position, unsigned char* source, Py_ssize_t start, Py_ssize_t count) except -1
cdef int put16(Buffer buffer, Py_ssize_t position, unsigned int value) except -1
cdef int put32(Buffer buffer, Py_ssize_t position, unsigned long value) except -1
cdef int put64(Buffer buffer, Py_ssize_t position, unsigned long long value) except -1
cdef unsigned int get16(unsigned char* data, Py_ssize_t position) noexcept
cdef unsigned long get32(unsigned char* data, Py_ssize_t position) noexcept
cdef unsigned long long get64(unsigned char* data, Py_ssize_t position) noexcept
cdef Py_ssize_t varint_end(unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept
cdef Py_ssize_t read_varint(unsigned char* data, Py_ssize_t at, Py_ssize_t stop) noexcept
