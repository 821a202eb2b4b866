# cython: cdivision=True
"""A gap between iterations, applied only while it increases the number of messages per system call.

A loop without a gap makes small batches under load: every writer's packet costs its own system calls. A short wait
collects packets (interrupt moderation), but a windowed publisher waits for the round trip. So the gap is tried and
measured. It is kept only if the loop's time per message falls and the message rate does not. At moderate rates an idle
loop never tries it, because it would only add latency. At high rates a loop that sleeps between iterations runs in
lockstep with its writers, each waking the other for every packet.
Source: docs/adr/0008-trio-with-a-compiled-loop.md.
"""

import cython

__all__ = ["Pacing"]

# Declared: compiled, these are C variables.
MEASURE_ITERATIONS = cython.declare(cython.longlong, 64)
MEASURE_NS_MAX = cython.declare(cython.longlong, 320_000_000)  # for those: no trial below 200 iterations per second
TRIAL_ITERATIONS = cython.declare(cython.longlong, 16)
KEEP_MIN = cython.declare(cython.longlong, 128)  # iterations until the next trial: it may follow a start-up
KEEP_MAX = cython.declare(cython.longlong, 2_000)
BACKOFF_MIN = cython.declare(cython.longlong, 250)
BACKOFF_MAX = cython.declare(cython.longlong, 200_000)
COST_MAX = cython.declare(cython.double, 0.75)  # of the loop's time per message without a gap
BUSY_SHARE_MIN = cython.declare(cython.double, 0.9)  # of the time: a loop that sleeps more is not saturated
LOCKSTEP_PER_NS_MIN = cython.declare(cython.double, 80e-6)  # messages: at this rate sleeping does not imply idleness
THROUGHPUT_MIN = cython.declare(cython.double, 0.95)  # of the rate without a gap
RESTING = cython.declare(cython.int, 0)
MEASURING = cython.declare(cython.int, 1)
TRYING = cython.declare(cython.int, 2)
KEEPING = cython.declare(cython.int, 3)


class Pacing:
    """State machine: measure, try, keep or rest."""

    def __init__(self, ceiling_ns: cython.longlong) -> None:
        self.ceiling_ns = ceiling_ns
        self.state = MEASURING
        self.switched_on = 0
        self.iterations = 0  # left in this state
        self.messages_from = 0
        self.since_ns = 0
        self.blocked_from_ns = 0
        self.plain_ns = 0.0  # busy time per message without a gap
        self.plain_per_ns = 0.0  # messages without a gap
        self.backoff = BACKOFF_MIN
        self.keep = KEEP_MIN
        self.iterations = MEASURE_ITERATIONS


def gap_ns(pacing: Pacing) -> cython.longlong:
    """Return the gap between iterations, 0 for none."""
    return pacing.ceiling_ns if pacing.state >= TRYING else 0


def after_iteration(
    pacing: Pacing, now_ns: cython.longlong, messages: cython.ulonglong, blocked_ns: cython.longlong
) -> cython.int:
    """Count an iteration and change the state.

    Args:
        pacing: Changed.
        now_ns: The end of the iteration.
        messages: Packets received since the start of the process.
        blocked_ns: Time spent waiting, for events and in gaps, since then.
    """
    count: cython.double
    per_ns: cython.double
    busy: cython.double
    elapsed: cython.longlong
    if pacing.ceiling_ns == 0:
        return 0
    pacing.iterations -= 1
    if pacing.iterations > 0:
        return 0
    count = max(1.0, cython.cast(cython.double, messages - pacing.messages_from))
    elapsed = max(1, now_ns - pacing.since_ns)
    per_ns = count / elapsed
    busy = (elapsed - (blocked_ns - pacing.blocked_from_ns)) / count
    if pacing.state == MEASURING:
        if (
            pacing.since_ns > 0
            and elapsed < MEASURE_NS_MAX
            and (busy * count >= BUSY_SHARE_MIN * elapsed or per_ns >= LOCKSTEP_PER_NS_MIN)
            and count >= MEASURE_ITERATIONS
        ):
            pacing.plain_ns = busy
            pacing.plain_per_ns = per_ns
            _enter(pacing, TRYING, TRIAL_ITERATIONS, now_ns, messages, blocked_ns)
        else:
            _enter(pacing, MEASURING, MEASURE_ITERATIONS, now_ns, messages, blocked_ns)
    elif pacing.state == TRYING:
        if busy <= COST_MAX * pacing.plain_ns and per_ns >= THROUGHPUT_MIN * pacing.plain_per_ns:
            pacing.backoff = BACKOFF_MIN
            pacing.switched_on += 1
            _enter(pacing, KEEPING, pacing.keep, now_ns, messages, blocked_ns)
            pacing.keep = min(4 * pacing.keep, KEEP_MAX)
        else:
            _enter(pacing, RESTING, pacing.backoff, now_ns, messages, blocked_ns)
            pacing.backoff = min(2 * pacing.backoff, BACKOFF_MAX)
            pacing.keep = KEEP_MIN
    else:
        _enter(pacing, MEASURING, MEASURE_ITERATIONS, now_ns, messages, blocked_ns)
    return 0


def _enter(
    pacing: Pacing,
    state: cython.int,
    iterations: cython.longlong,
    now_ns: cython.longlong,
    messages: cython.ulonglong,
    blocked_ns: cython.longlong,
) -> None:
    pacing.state = state
    pacing.iterations = iterations
    pacing.messages_from = messages
    pacing.since_ns = now_ns
    pacing.blocked_from_ns = blocked_ns
