# C types of mqtt/packet_identifiers.py; measured by bench/storage_core.py.


cdef class PacketIdentifiers:
    cdef set _in_use
    cdef public unsigned int last

    cpdef object allocate(self)
    cpdef bint claim(self, unsigned int packet_identifier) except *
    cpdef bint release(self, unsigned int packet_identifier) except *
