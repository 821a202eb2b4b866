"""What the cores of the storage tier are told about bounds; plain values (the operator's model is conf/settings.py)."""

from dataclasses import dataclass

__all__ = ["PartitionSettings"]


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Bounds and policies of every partition of a node."""

    queue_messages_max: int = 10_000  # unconsumed entries per session
    queue_bytes_max: int = 64 * 1024 * 1024
    queue_full: str = "drop_oldest"  # or "refuse": 0x97 and nothing is kept
    outbound_window_max: int = 256  # min(client's Receive Maximum, this)
    inbound_unreleased_max: int = 1_024  # QoS 2 counters above the lowest unreleased one
    session_expiry_max_s: int = 7 * 24 * 3600  # longer requests are cut to this; 0: no cap
    retained_messages_max: int = 1_000_000  # registers per partition
    retained_bytes_max: int = 256 * 1024 * 1024  # of payloads, per partition
    waiting_opens_max: int = 10_000  # CONNECTs of a partition that wait for a kick or for the claims poll
    kick_wait_s: float = 0.2  # how long CONNACK waits for the older connection's edge
    acks_per_row: int = 64  # consumed entries of a session that share one session row and one round of deletions
    ack_delay_s: float = 0.2  # after which fewer than that are saved too
    keep_log: bool = True  # op log rows even without replicas: incremental export needs them
    log_operations_max: int = 10_000  # per partition; older ones are cut
    inline_bytes_max: int = 256  # larger bodies shared by several sessions are stored once
    piece_bytes: int = 256 * 1024  # a body's largest piece
