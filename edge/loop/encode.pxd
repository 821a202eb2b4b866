# C form of encode.py.
from edge.loop.buffers cimport Buffer, copy_bytes, copy_span, get16, get32, put16, put32, read_varint, reserve, same_bytes, varint_end
from edge.loop.layout cimport MALFORMED_PACKET, NO_EXPIRY, PROTOCOL_ERROR, QUOTA_EXCEEDED
from edge.loop.state cimport PublishView


cdef Py_ssize_t publish_bytes(PublishView packet, bint five, int qos, bytes identifiers) noexcept
cdef int write_publish(
    Buffer buffer, PublishView packet, bint five, int qos, bint retain, bint dup, int packet_identifier, bytes identifiers
) except -1
cdef int copy_plain(Buffer buffer, Py_ssize_t at, PublishView packet) except -1
cdef int varint_bytes(Py_ssize_t value) noexcept
cdef Py_ssize_t put_varint(unsigned char* data, Py_ssize_t at, Py_ssize_t value) noexcept
cdef int walk_properties(
    PublishView packet, unsigned char* data, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t user_max, Py_ssize_t users_max
) noexcept
cdef bint valid_text(unsigned char* data, Py_ssize_t at, Py_ssize_t count) noexcept
cdef bint valid_topic(unsigned char* data, Py_ssize_t at, Py_ssize_t count) noexcept
cdef Py_ssize_t load_plain(PublishView packet, unsigned char* data, Py_ssize_t at, bint five) noexcept


# private
cdef Py_ssize_t _property_bytes(PublishView packet, bytes identifiers)
cdef Py_ssize_t _body_bytes(PublishView packet, bint five, int qos, bytes identifiers)
cdef int _property_error(int property_id)
cdef Py_ssize_t _field_bytes(unsigned char* data, Py_ssize_t at, Py_ssize_t end, int property_id)
cdef Py_ssize_t _text_bytes(unsigned char* data, Py_ssize_t at, Py_ssize_t end)
cdef Py_ssize_t _pair_bytes(unsigned char* data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t most)
