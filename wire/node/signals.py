"""Effects of signals on a node: orderly stop, immediate stop, reload, state dump.

SIGTERM stops it in order (``wire/node/orderly_stop.py``); a second one, or SIGINT, stops it at once; SIGHUP reloads the
settings (``wire/node/reload.py``); SIGUSR1 writes the node's state to the log, bounded.
"""

import logging
import signal
from collections.abc import Callable, Mapping, Sequence

import trio

from conf.events import say
from conf.metrics import Metrics

__all__ = ["STOP_S_MAX", "obey_signals", "state_lines", "survive_signals"]

logger = logging.getLogger(__name__)

STOP_S_MAX = 9.5  # from SIGTERM to the forced end
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
LINES_MAX = 200  # of the state; more are counted
LINE_CHARS_MAX = 400
LABELS_MAX = 40  # values of one metric


def survive_signals() -> None:
    """Ignore SIGHUP and SIGUSR1 until they are handled: a closed terminal or a state dump must not end this process."""
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


async def obey_signals(
    stopping: trio.Event,
    end: Callable[[], None],
    counts: dict[str, int],
    state: Callable[[], list[str]],
    reload: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Handle signals until ``end`` is called; started when the handlers are installed.

    Args:
        stopping: Set by the first SIGTERM.
        end: Ends the process at once.
        counts: Received signals by name; incremented here.
        state: Returns the state for SIGUSR1, bounded (``state_lines``).
        reload: Requests a reload of files and settings.
    """
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(*HANDLED) as signals:
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                counts[name] = counts.get(name, 0) + 1
                if number == signal.SIGHUP:
                    say(logger, "signal.reload")
                    reload()
                elif number == signal.SIGUSR1:
                    for line in state():
                        say(logger, "signal.state", line=line)
                elif number == signal.SIGTERM and not stopping.is_set():
                    say(logger, "signal.stop")
                    stopping.set()
                    nursery.start_soon(_end_late, end)
                else:
                    say(logger, "signal.end", signal=name)
                    end()


async def _end_late(end: Callable[[], None]) -> None:
    await trio.sleep(STOP_S_MAX)
    say(logger, "node.stop_late", seconds=STOP_S_MAX)
    end()


def state_lines(described: Sequence[str], metrics: Metrics) -> list[str]:
    """Return the node's state as bounded text: its own lines first, then every metric of ``/metrics``.

    Args:
        described: Name, lease, map and links.
        metrics: Also has the readiness checks.
    """
    lines = [*described, *(f"{name}: {'ok' if passed else 'no'}" for name, passed in metrics.readiness().items())]
    for name, value in sorted(metrics.read().items()):
        if isinstance(value, Mapping):
            shown = sorted(value.items())
            more = f" and {len(shown) - LABELS_MAX} more" if len(shown) > LABELS_MAX else ""
            values_text = ", ".join(f"{'/'.join(labels)} {number:g}" for labels, number in shown[:LABELS_MAX])
            lines.append(f"{name}: {values_text}{more}")
        elif isinstance(value, int | float):
            lines.append(f"{name}: {value:g}")
    more_lines = len(lines) - LINES_MAX
    if more_lines > 0:
        lines[LINES_MAX:] = [f"and {more_lines} lines more"]
    return [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]} ..." for line in lines]
