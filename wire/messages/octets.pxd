# C form of octets.py.
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy


cdef enum:
    OCTETS_KEPT = 16384


cdef class Octets:
    cdef unsigned char* data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity


cdef Py_ssize_t make_room(Octets octets, Py_ssize_t count) except -1
cdef int add8(Octets octets, unsigned int value) except -1
cdef int add16(Octets octets, unsigned int value) except -1
cdef int add32(Octets octets, unsigned long value) except -1
cdef int add64(Octets octets, unsigned long long value) except -1
cdef int add_span(Octets octets, unsigned char* source, Py_ssize_t start, Py_ssize_t count) except -1
cdef int add_bytes(Octets octets, bytes source) except -1
cdef bytes take_all(Octets octets)
cdef unsigned int get16(unsigned char* data, Py_ssize_t position) noexcept
cdef unsigned long get32(unsigned char* data, Py_ssize_t position) noexcept
cdef unsigned long long get64(unsigned char* data, Py_ssize_t position) noexcept
