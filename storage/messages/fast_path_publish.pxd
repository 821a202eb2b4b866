# C declarations of fast_path_publish.py.
from storage.state.session_window cimport InFlight, SessionWindow, is_caught_up, is_window_open, assign_place
from wire.messages.octets cimport (
    Octets, add8, add16, add32, add64, add_bytes, add_span, get16, get32, get64, take_all)


cdef enum:
    RUN = 0
    MESSAGE = 1
    RUN_HEAD = 9
    MESSAGE_HEAD = 60
    PLACE = 6
    FLAGS_AT = 2
    KIND_AT = 3
    TAG_AT = 4
    ORIGIN_A_AT = 12
    ORIGIN_B_AT = 20
    SESSION_AT = 28
    OWNER_EPOCH_AT = 36
    EXPIRY_AT = 44
    PLACES_AT = 48
    TOPIC_AT = 50
    PROPERTIES_AT = 52
    PAYLOAD_AT = 56
    SHARE_FLAG = 0x08
    OWNER_FLAG = 0x10
    TRACED_FLAG = 0x20
    ENTRY_OVERHEAD = 64
    SENT = 1
    ENDING = 1
    ARRIVED_FLAG = 0x40
    NO_EXPIRY = 0xFFFFFFFF
    QUEUE_KIND = 113


cdef class FastPathRoute:
    cdef SessionWindow session
    cdef bytes identifiers
    cdef bint traced


cdef class FastPathPublish:
    cdef public unsigned int number
    cdef public object partition
    cdef object origins
    cdef object publishers
    cdef dict routes
    cdef Py_ssize_t queue_messages_max
    cdef Py_ssize_t queue_bytes_max
    cdef Py_ssize_t payload_max
    cdef unsigned long long life_ms
    cdef Octets pushes
    cdef Octets answers
    cdef str node
    cdef str push_node
    cdef unsigned long since
    cdef unsigned long epoch
    cdef unsigned long long served_ms
    cdef unsigned long long building
    cdef dict writes
    cdef dict newest
    cdef unsigned long long first
    cdef unsigned long long counter
    cdef double now


cdef class PublishHandler:
    cdef object get_fast_path
    cdef object others
    cdef object runs
    cdef public long long left
    cdef dict fast_paths
    cdef list pool
    cdef Octets scratch
    cdef str node
    cdef object sender
    cdef double now
    cdef double lease_s


cdef object open_fast_path(PublishHandler handler, FastPathPublish fast_path)
cdef object close_fast_path(PublishHandler handler, FastPathPublish fast_path)
cdef int send_pushes(FastPathPublish fast_path) except -1
cdef FastPathRoute find_route(FastPathPublish fast_path, bytes topic)
cdef bint process_message(
    PublishHandler handler, FastPathPublish fast_path, unsigned char* data, Py_ssize_t at, Py_ssize_t body_at) except -1
cdef bint trace(
    FastPathPublish fast_path, object session, unsigned long long session_seq, bytes topic, unsigned int identifier,
    unsigned char* data, Py_ssize_t at) except -1
cdef bint observe_publisher(
    PublishHandler handler, FastPathPublish fast_path, unsigned long long publisher, unsigned long long owner_epoch) except -1
cdef bint can_send_at_once(FastPathPublish fast_path, SessionWindow session, Py_ssize_t size) except -1
cdef int write_row(
    Octets scratch, FastPathPublish fast_path, SessionWindow session, unsigned long long session_seq, FastPathRoute route,
    unsigned char* data, Py_ssize_t at, Py_ssize_t body_at, unsigned int identifier,
    unsigned long long deadline) except -1
cdef int write_push(
    FastPathPublish fast_path, SessionWindow session, unsigned long long session_seq, FastPathRoute route,
    unsigned char* data, Py_ssize_t at, Py_ssize_t body_at, unsigned int identifier, unsigned long expiry_s,
    bint traced) except -1
cdef Py_ssize_t record_end(unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept
cdef bint is_simple(unsigned char* data, Py_ssize_t at) noexcept
cdef int process_record(PublishHandler handler, bytes payload, Py_ssize_t at, Py_ssize_t stop) except -1
cdef FastPathPublish find_fast_path(PublishHandler handler, unsigned int number)
