# C declarations of memtable.py.
from wire.messages.octets cimport Octets, add16, add32, add_bytes, take_all


cdef enum:
    DELETED = 0xFFFFFFFF


cdef class KeyUpperBounds:
    cdef bytes ascending
    cdef object highest
    cdef dict tops


cdef class PartRows:
    cdef dict fresh
    cdef dict rows
    cdef list ordered


cdef class MemTable:
    cdef public unsigned long long number
    cdef KeyUpperBounds below
    cdef dict parts


cdef object forget_deletion(MemTable table, bytes key)
cdef PartRows part_of(MemTable table, bytes head)
cdef object put_row(MemTable table, PartRows part, bytes key, bytes value)
cdef bint note_new(KeyUpperBounds below, bytes key) except -1
cdef object delete_row(PartRows part, bytes key)
cdef list keys_between(PartRows part, bytes start, bytes stop)
