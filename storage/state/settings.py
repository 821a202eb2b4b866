"""Bounds of the storage tier's cores; plain values (the operator's model is conf/settings.py)."""

from dataclasses import dataclass

from conf.storage_settings import StorageSettings
from wire.messages.wills import WILL_WINDOW

__all__ = ["PartitionSettings"]

DEFAULT = StorageSettings()  # one default per setting, and its description: conf/storage_settings.py


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Bounds and policies of every partition of a node."""

    queue_messages_max: int = DEFAULT.queue_messages_max  # unconsumed entries per session
    queue_bytes_max: int = DEFAULT.queue_bytes_max
    queue_full: str = DEFAULT.queue_full  # or "refuse": 0x97, and the message is not queued
    message_expiry_max_s: int = DEFAULT.message_expiry_max_s  # of an entry of a queue; 0: no ceiling
    outbound_window_max: int = DEFAULT.outbound_window_max  # min(client's Receive Maximum, this)
    # Span of will numbers in which repeats are detected; nodes of one cluster must agree
    will_window: int = WILL_WINDOW
    inbound_unreleased_max: int = DEFAULT.inbound_unreleased_max  # QoS 2 counters above the lowest unreleased one
    sessions_max: int = DEFAULT.sessions_max  # stored ones; CONNECTs for more get 0x97
    sessions_per_user_max: int = DEFAULT.sessions_per_user_max  # of them, of one user
    filters_per_session_max: int = DEFAULT.filters_per_session_max  # subscriptions; more are refused (0x97)
    events: bool = DEFAULT.events  # edges receive an event for each expired session
    retained_messages_max: int = DEFAULT.retained_messages_max  # topics, per partition
    retained_bytes_max: int = DEFAULT.retained_bytes_max  # of payloads, per partition
    retained_payload_max: int = DEFAULT.retained_payload_max  # bytes of one; 0: no bound of its own
    retained_per_user_max: int = DEFAULT.retained_per_user_max  # retained topics of one user per partition
    waiting_opens_max: int = 10_000  # CONNECTs of a partition that wait for a kick or for the claims poll
    kick_wait_s: float = 0.2  # how long CONNACK waits for the older connection's edge
    acks_per_row: int = 64  # consumed entries of a session that share one session row and one set of deletions
    ack_delay_s: float = 1.0  # delay after which fewer are saved in an operation of their own
    keep_log: bool = DEFAULT.keep_log  # op log rows even without replicas: incremental export needs them
    log_operations_max: int = DEFAULT.log_operations_max  # per partition; older ones are trimmed
    inline_bytes_max: int = 256  # larger bodies shared by several sessions are stored once
    piece_bytes: int = 256 * 1024  # a body's largest piece
