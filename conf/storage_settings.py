"""Settings of the storage tier: durability, queue bounds, retained messages.

lsm-db's own options are constants of ``storage/store/store.py``: changing them changes durability, not performance.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

__all__ = ["StorageSettings"]

MIB = 1024 * 1024


class StorageSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``storage``."""

    group_commit_ms: float = Field(
        default=2.0,
        ge=0.0,
        le=100.0,
        description="ms to collect operations for one commit under load; adds to latency",
    )

    # --- queues of durable sessions
    queue_messages_max: int = Field(
        default=10_000,
        ge=1,
        le=100_000_000,
        description="messages queued for one session; beyond it: queue_full",
    )
    queue_bytes_max: int = Field(default=64 * MIB, ge=4096, le=1 << 40, description="bytes queued for one session")
    queue_full: Literal["drop_oldest", "refuse"] = Field(
        default="drop_oldest",
        description="drop the oldest (counted), or refuse the new one: 0x97, no acknowledgement in 3.1.1",
    )
    message_expiry_max_s: int = Field(
        default=0,
        ge=0,
        le=0xFFFFFFFE,
        description=(
            "s that a message may be queued while the service runs, then it is dropped (expired); 0: no limit"
        ),
    )
    outbound_window_max: int = Field(
        default=256,
        ge=1,
        le=65535,
        description="in-flight QoS 1/2 messages to a client: the smaller of its Receive Maximum and this",
    )
    inbound_unreleased_max: int = Field(
        default=1024, ge=1, le=65535, description="QoS 2 messages of one publisher between PUBREC and PUBREL"
    )

    # --- sessions and subscriptions
    sessions_max: int = Field(
        default=50_000, ge=1, le=10_000_000, description="stored sessions per partition; CONNECTs for more get 0x97"
    )
    sessions_per_user_max: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description=(
            "stored sessions of one user per partition; CONNECTs for more get 0x97; sessions without a user do "
            "not count"
        ),
    )
    filters_per_session_max: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="subscriptions of one stored session, over all its connections; more are refused (0x97)",
    )

    events: bool = Field(
        default=False,
        description="report expired sessions to edges: $SYS/cluster/events/session_expired, with edge.events",
    )

    # --- retained messages
    retained_messages_max: int = Field(
        default=1_000_000, ge=0, le=1_000_000_000, description="retained topics per partition; more are refused (0x97)"
    )
    retained_bytes_max: int = Field(
        default=256 * MIB,
        ge=0,
        le=1 << 40,
        description="bytes of retained payloads per partition; more are refused (0x97)",
    )

    retained_payload_max: int = Field(
        default=0,
        ge=0,
        le=1 << 28,
        description="bytes of one retained payload, 0: no separate bound; larger ones are refused (0x97)",
    )

    retained_per_user_max: int = Field(
        default=100_000,
        ge=0,
        le=1_000_000_000,
        description="retained topics of one user per partition; more are refused (0x97)",
    )

    # --- op log and disk
    log_operations_max: int = Field(
        default=10_000,
        ge=0,
        le=100_000_000,
        description="operations per partition kept for copies that catch up and for incremental exports",
    )
    keep_log: bool = Field(default=True, description="keep the op log even with one copy: incremental export needs it")
    free_space_floor_bytes: int = Field(
        default=512 * MIB,
        ge=0,
        le=1 << 40,
        description="bytes of free disk below which writes are refused; the larger floor applies",
    )
    free_space_floor_percent: float = Field(
        default=5.0, ge=0.0, le=90.0, description="the same in per cent of the file system"
    )
    export_dir: Path | None = Field(
        default=None,
        description="folder that `stratamq store export` may write below on this node; default: exports in data_dir",
    )
    ledger: str = Field(
        default="",
        description="folder of acknowledgement ledgers for the audit job, one folder per node in it; empty: off",
    )
