# cython: cdivision=True
# mypy: disable-error-code="no-any-return"
"""A minimum gap between rounds, applied only while it makes system calls carry more messages.

An eager loop under load makes small batches: every writer's packet costs its own system calls. Waiting a moment lets
packets pile up (interrupt moderation), but a windowed publisher waits for the round trip. So it is tried, measured and
kept only if messages per round rise; and never tried while the loop has time to sleep, where it would only add latency.
Source: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import cython

__all__ = ["Pacing"]

MEASURE_ROUNDS = 64
TRIAL_ROUNDS = 16
KEEP_ROUNDS = 2_000
ROUNDS_PER_S_MIN = 2_000
BACKOFF_MIN, BACKOFF_MAX = 4_000, 200_000
GAIN_MIN = 1.5
BLOCKED_SHARE_MAX = 0.1  # of the time: a loop that sleeps more is not saturated
RESTING, MEASURING, TRYING, KEEPING = 0, 1, 2, 3


class Pacing:
    """State machine: measure, try, keep or rest."""

    def __init__(self, ceiling_ns: cython.longlong) -> None:
        self.ceiling_ns = ceiling_ns
        self.state = 1
        self.switched_on = 0
        self.rounds = 0  # left in this state
        self.messages_from = 0
        self.since_ns = 0
        self.blocked_from_ns = 0
        self.plain_rate = 0.0
        self.backoff = BACKOFF_MIN
        self.rounds = MEASURE_ROUNDS


def gap_ns(pacing: Pacing) -> cython.longlong:
    """Least time from the start of one round to the start of the next, 0 for none."""
    return pacing.ceiling_ns if pacing.state >= 2 else 0


def after_round(
    pacing: Pacing, now_ns: cython.longlong, messages: cython.ulonglong, blocked_ns: cython.longlong
) -> cython.int:
    """Count a round and move on.

    Args:
        pacing: Changed.
        now_ns: The end of the round.
        messages: Packets received since the start of the process.
        blocked_ns: Time spent waiting for events, likewise, gaps not included.
    """
    rate: cython.double
    elapsed: cython.longlong
    if pacing.ceiling_ns == 0:
        return 0
    pacing.rounds -= 1
    if pacing.rounds > 0:
        return 0
    if pacing.state == 1:
        rate = cython.cast(cython.double, messages - pacing.messages_from) / 64
        elapsed = now_ns - pacing.since_ns
        if (
            pacing.since_ns > 0
            and elapsed < 32_000_000  # 64 rounds at 2 000 a second
            and (blocked_ns - pacing.blocked_from_ns) * 10 < elapsed
            and rate > 0
        ):
            pacing.plain_rate = rate
            _enter(pacing, 2, 16, now_ns, messages, blocked_ns)
        else:
            _enter(pacing, 1, 64, now_ns, messages, blocked_ns)
    elif pacing.state == 2:
        rate = cython.cast(cython.double, messages - pacing.messages_from) / 16
        if rate >= 1.5 * pacing.plain_rate:
            pacing.backoff = 4_000
            pacing.switched_on += 1
            _enter(pacing, 3, 2_000, now_ns, messages, blocked_ns)
        else:
            _enter(pacing, 0, pacing.backoff, now_ns, messages, blocked_ns)
            pacing.backoff = min(2 * pacing.backoff, 200_000)
    else:
        _enter(pacing, 1, 64, now_ns, messages, blocked_ns)
    return 0


def _enter(
    pacing: Pacing,
    state: cython.int,
    rounds: cython.longlong,
    now_ns: cython.longlong,
    messages: cython.ulonglong,
    blocked_ns: cython.longlong,
) -> None:
    pacing.state = state
    pacing.rounds = rounds
    pacing.messages_from = messages
    pacing.since_ns = now_ns
    pacing.blocked_from_ns = blocked_ns
