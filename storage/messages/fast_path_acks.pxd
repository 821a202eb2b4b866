# C declarations of fast_path_acks.py.
from storage.state.session_window cimport InFlight, SessionWindow, release_place, is_caught_up
from wire.messages.octets cimport get64


cdef enum:
    PUSH_ACK = 30
    OWNER_EPOCH_AT = 8
    SEQ_AT = 20
    TYPE_AT = 28
    CODE_AT = 29
    PUBACK = 4


cdef class FastPathAcks:
    cdef object partition
    cdef dict sessions
    cdef object consumed
    cdef object outbound
    cdef Py_ssize_t acks_per_row


cdef class AckHandler:
    cdef object get_fast_path
    cdef object others


cdef bint process_puback(
    FastPathAcks fast_path, unsigned char* data, Py_ssize_t at, str node, unsigned long long incarnation) except -1
