# C form of state.py.
from edge.loop.buffers cimport Buffer, Pool
from edge.loop.counters cimport Counters
from edge.loop.durations cimport Durations
from edge.loop.shared_rate_limits cimport SharedRateLimit
from edge.loop.read_ahead cimport ReadAhead
from edge.loop.round_trips cimport RoundTrips


cdef enum:
    PARK_HANDLER = 1
    PARK_SLOW = 2
    PARK_PEER = 4
    PARK_QUOTA = 8
    PARK_OUTPUT = 16
    PARK_RATE = 32
    PARK_PIPELINE = 64
    UNREGISTERED = 0x40000000
    ANSWER_PENDING = -1
    RELEASE_PENDING = -2


cdef class LoopConnection:
    cdef public object context
    cdef readonly int fd
    cdef readonly int kind
    cdef bint is_link
    cdef readonly int version
    cdef readonly bint closed
    cdef readonly int parked
    cdef readonly bint pipelining
    cdef readonly long long number
    cdef Py_ssize_t slot
    cdef readonly unsigned long long session
    cdef readonly unsigned long long owner_epoch
    cdef unsigned long push_epoch
    # reading
    cdef bint parsing
    cdef bint ready
    cdef bint dirty
    cdef LoopConnection next_dirty
    cdef bint hearing
    cdef readonly bint half_closed
    cdef bint lingering
    cdef bytes partial
    cdef Py_ssize_t needed
    cdef readonly ReadAhead ahead
    cdef Py_ssize_t packet_bytes_max
    cdef bytes last_topic
    cdef Route last_route
    cdef long long last_version
    cdef dict permissions
    cdef unsigned long long rights_bit
    cdef long long rights_epoch
    cdef long long authz_key
    cdef readonly bint judge_pushes
    cdef public bint traced
    cdef readonly long long dropped
    cdef list aliases
    cdef int alias_max
    # acknowledging its messages
    cdef readonly int quota
    cdef readonly int quota_max
    cdef bint fresh
    cdef bint excess
    cdef Py_ssize_t excess_bytes
    cdef long long excess_since_ns
    cdef readonly dict received
    cdef bint resumed
    cdef dict refused
    cdef readonly object ack_queue
    cdef dict origins
    cdef bint retain_available
    cdef int qos_max
    # writing
    cdef readonly Buffer out
    cdef bint has_acks
    cdef readonly bint lagging
    cdef readonly bint high
    cdef readonly int waits
    cdef readonly list waiters
    cdef readonly long long high_since_ns
    cdef bint reports_capacity
    cdef readonly Py_ssize_t client_packet_max
    cdef readonly OutboundWindow outbound
    cdef readonly int window
    cdef dict outbound_aliases
    cdef int outbound_aliases_max
    # time
    cdef readonly long long heard_ns
    cdef readonly long long silence_ns
    cdef long long next_message_ns
    cdef long long next_byte_ns
    cdef long long next_filter_ns
    cdef long long publish_gap_ns
    cdef long long byte_gap_ps
    cdef bint metered
    cdef readonly SharedRateLimit purse
    cdef long long packet_begun_ns
    cdef long long close_at_ns
    cdef int why
    cdef readonly LoopPeer peer
    cdef long long denied_ns
    # of the loop
    cdef readonly object tls
    cdef object filter
    cdef object options
    cdef unsigned int armed
    cdef int tls_state
    cdef bytes unsent
    cdef long long written
    cdef long long wrapped
    cdef Py_ssize_t held_bytes
    cdef long long connect_ns


cdef class BackloggedMessage:
    cdef Py_ssize_t bytes
    cdef int holders
    cdef tuple origin


cdef class OutboundWindow:
    cdef readonly int window
    cdef readonly int mask
    cdef readonly int next_identifier
    cdef readonly int inflight
    cdef readonly bytearray states
    cdef readonly bytearray identifiers
    cdef readonly object pending
    cdef readonly Py_ssize_t pending_bytes
    cdef dict picks
    cdef Py_ssize_t picks_bytes
    cdef readonly RoundTrips trips
    cdef readonly dict pushes
    cdef dict answered
    cdef object unsent_acks
    cdef dict traced


cdef class Sub:
    cdef readonly LoopConnection conn
    cdef readonly int qos
    cdef readonly bint no_local
    cdef readonly bint retain_as_published
    cdef readonly bytes identifiers
    cdef readonly bint held
    cdef readonly bint own_only
    cdef readonly tuple copies
    cdef readonly bint conditional


cdef class Remote:
    cdef readonly LoopPeer peer
    cdef readonly int partition
    cdef readonly bytes share
    cdef readonly int attempt


cdef class ShareGroup:
    cdef public bytes share


cdef class Route:
    cdef readonly bytes topic
    cdef readonly tuple subs
    cdef readonly tuple edges
    cdef readonly tuple partitions
    cdef readonly tuple groups
    cdef readonly int reason_code
    cdef bint remote
    cdef readonly bint empty
    cdef int cached_verdict  # beside the fields that a message reads first, for one cache line
    cdef long long rights_epoch
    cdef int uses
    cdef unsigned long long decided
    cdef unsigned long long allowed
    cdef long long cached_authz_key
    cdef long long generation
    cdef readonly object audience
    cdef public bint named
    cdef public bint traced
    cdef public int copies
    cdef list targets
    cdef long long targets_version
    cdef bytes recorded


cdef class InboundPublish:
    cdef public bytes topic
    cdef public bytes payload
    cdef public int qos
    cdef public bint retain
    cdef public bytes properties
    cdef public int version
    cdef public unsigned long expiry_s
    cdef public int packet_identifier
    cdef public bint dup
    cdef public LoopConnection conn
    cdef public bint traced
    cdef readonly PendingAck reserved_ack


cdef class PendingAck:
    cdef readonly unsigned long long tag
    cdef readonly int qos
    cdef readonly int waiting
    cdef readonly int reason_code
    cdef readonly LoopConnection conn
    cdef readonly int packet_identifier
    cdef public bint done
    cdef bint counted
    cdef readonly bint delivered
    cdef bint traced
    cdef object on_done
    cdef readonly bytes record
    cdef readonly long long at_ns
    cdef Py_ssize_t excess_bytes
    cdef readonly Remote pick
    cdef readonly PendingAck parent
    cdef readonly ShareGroup group
    cdef public list tried
    cdef Route route
    cdef readonly int retained_partition
    cdef readonly int origin_kind
    cdef readonly unsigned long long origin_a
    cdef readonly unsigned long long origin_b


cdef class PartitionOutbox:
    cdef readonly dict messages
    cdef object unsent
    cdef readonly bint held
    cdef LoopPeer target
    cdef dict former


cdef class LoopPeer:
    cdef readonly int node
    cdef readonly str tier
    cdef readonly unsigned long long incarnation
    cdef readonly object link
    cdef readonly LoopConnection conn
    cdef readonly bint dead
    cdef public object key
    cdef bint is_edge
    cdef bint may_publish
    cdef bint may_acknowledge
    cdef bint may_push
    cdef Buffer batch
    cdef list batch_messages
    cdef object inflight
    cdef dict picks
    cdef Buffer publish_acks
    cdef Buffer push_acks
    cdef Py_ssize_t room
    cdef Py_ssize_t low_bytes
    cdef Py_ssize_t unacked_bytes
    cdef bint full
    cdef list waiters
    cdef object blocked
    cdef public bint listed


cdef class PublishView:
    cdef unsigned char* data
    cdef bytes keep
    cdef int version
    cdef int qos
    cdef bint retain
    cdef bint dup
    cdef int packet_identifier
    cdef unsigned long expiry_s
    cdef int alias
    cdef Py_ssize_t alias_at
    cdef Py_ssize_t expiry_at
    cdef Py_ssize_t properties_at
    cdef Py_ssize_t properties_bytes
    cdef Py_ssize_t plain_bytes
    cdef Py_ssize_t payload_at
    cdef Py_ssize_t payload_bytes
    cdef bytes topic
    cdef int origin_kind
    cdef unsigned long long origin_a
    cdef unsigned long long origin_b
    cdef bint traced
    cdef bint has_reserved
    cdef unsigned long long session
    cdef unsigned long long owner_epoch
    cdef tuple pending
    cdef int pending_key


cdef class LoopState(Counters):
    cdef readonly object handler
    cdef readonly unsigned long long incarnation
    cdef public bytes origin_prefix
    cdef readonly object limits
    cdef readonly long long now_ns
    cdef public long long turn_end_ns
    cdef public bint authorizing
    cdef public object ledger
    cdef Buffer ledger_rows
    cdef long ledger_count
    cdef public long long ledger_offset_ns
    cdef readonly Durations delivered
    cdef readonly Durations acks_in
    cdef public object journal
    cdef public object trace
    cdef long long noted_ns
    cdef long notes
    cdef long long lease_until_ns
    cdef readonly bint leased
    cdef long long fence_ns
    cdef long long lease_ns
    cdef readonly bint reading
    cdef Pool pool
    cdef PublishView packet
    cdef PublishView second
    cdef Buffer scratch
    cdef Buffer converted
    # connections
    cdef long long numbers
    cdef list conns
    cdef LoopConnection dirty_first
    cdef LoopConnection dirty_last
    cdef list ready
    cdef list closed_conns
    cdef list conns_with_capacity
    cdef int close_reports_left
    cdef readonly list high
    cdef list lingering
    cdef dict sessions
    cdef bint direct
    # routes
    cdef readonly dict routes
    cdef readonly dict local_routes
    cdef long long routes_version
    cdef bint missed
    cdef readonly long long rights_epoch
    cdef readonly long long generation
    cdef int routes_max
    # peers
    cdef unsigned long long tags
    cdef unsigned long long origin_tag
    cdef bytes owner_block
    cdef list peers
    cdef list busy_peers
    cdef int full_peers
    cdef readonly list primaries
    cdef list epochs
    cdef long long primaries_version
    cdef readonly list outboxes
    cdef dict pumping
    cdef Py_ssize_t outbox_bytes
    cdef Py_ssize_t outbox_bytes_max
    cdef list outbox_waiters
    cdef Py_ssize_t peer_low_bytes
    cdef object will_origins
    cdef object session_origins
    cdef object picked_origins
    # limits
    cdef readonly Py_ssize_t output_high
    cdef Py_ssize_t output_low
    cdef Py_ssize_t drop_above
    cdef readonly long long lag_after_ns
    cdef readonly Py_ssize_t held_bytes
    cdef Py_ssize_t held_bytes_max
    cdef readonly Py_ssize_t read_ahead_bytes
    cdef Py_ssize_t read_ahead_max
    cdef Py_ssize_t run_payload
    cdef Py_ssize_t converted_payload
    cdef Py_ssize_t iteration_bytes
    cdef Py_ssize_t iteration_bytes_max
    cdef readonly int pending_max
    cdef Py_ssize_t pending_bytes_max
    cdef int window_max
    cdef int permissions_max
    cdef int received_max
    cdef int excess_max
    cdef Py_ssize_t excess_bytes_max
    cdef long long excess_wait_ns
    cdef long long publish_gap_ns
    cdef long long packet_timeout_ns
    cdef long long packet_rate_min
    cdef Py_ssize_t user_bytes_max
    cdef list paced
    cdef long long paced_at_ns
    cdef Py_ssize_t users_max
