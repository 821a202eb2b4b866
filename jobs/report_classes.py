"""Upper bounds of the classes in the tables of a report."""

__all__ = ["DEPTHS", "EXPIRY_HOURS", "LONGEST_QUEUES"]

DEPTHS = (0, 1, 10, 100, 1_000, 10_000, 100_000)  # queued entries of a session
EXPIRY_HOURS = (0, 1, 24, 24 * 7, 24 * 30)  # until a session expires
LONGEST_QUEUES = 10
