"""The totals of the proof from ack ledgers, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLOCK_MARGIN_MS", "NOT_PROVEN", "PROOF_COLUMNS", "Proof"]

PROOF_COLUMNS = ("ACKED", "DELIVERED", "QUEUED", "EXPIRED", "DROPPED", "LOST", "DUPLICATED")
NOT_PROVEN = (
    "that every acknowledged message was handed to each shared group of its topic: edges do not record the choice; "
    "what partitions took for groups is in the columns, as a debt to the member chosen",
    "anything about sessions that end with their connection, members of shared groups among them",
    "each copy, where a session's subscriptions overlap: one of them meets the debt",
    "who was subscribed, independently of the partition's own match, for filters with wildcards",
    "QoS 0",
)
CLOCK_MARGIN_MS = 2_000  # node clocks differ: a subscription counts only if it is older than the message by this


@dataclass(frozen=True, slots=True)
class Proof:
    """Totals of the proof."""

    acked: int
    delivered: int
    queued: int
    expired: int
    dropped: int
    lost: int
    duplicated: int
    shared: int = 0  # part of acked: queued for shared groups

    def as_row(self) -> dict[str, int]:
        """Return the columns by their names."""
        values = (
            *(self.acked, self.delivered, self.queued, self.expired, self.dropped, self.lost),
            self.duplicated,
        )
        return dict(zip(PROOF_COLUMNS, values, strict=True))
