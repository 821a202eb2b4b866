"""Effects of signals on a node, and its state dump."""

import logging
import os
import signal
from typing import Any

import pytest
import trio

from conf.metrics import Metrics
from tests.patience import PATIENCE_S
from wire.node import signals
from wire.node.signals import LINE_CHARS_MAX, LINES_MAX, obey_signals, state_lines


def metrics_of_an_edge() -> Metrics:
    """Return metrics and a check like those of an edge."""
    metrics = Metrics("edge", "edge-0", "1")
    metrics.counter("drops_total", "", lambda: {("slow",): 3.0, ("closed",): 1.0}, ("reason",))
    metrics.gauge("clients", "", lambda: 7.0)
    metrics.check("lease", lambda: False)
    return metrics


class SignalledNode:
    """A node that handles signals in the test process."""

    def __init__(self) -> None:
        self.stopping = trio.Event()
        self.ended = trio.Event()
        self.counts: dict[str, int] = {}
        self.metrics = metrics_of_an_edge()
        self.reloads = 0

    def reload(self) -> None:
        """Count a reload request."""
        self.reloads += 1

    def state(self) -> list[str]:
        """Return the state dump of SIGUSR1."""
        return state_lines(["node edge-0, edge, incarnation 12", "map epoch 4", "2 links: r, s"], self.metrics)

    async def send(self, number: signal.Signals, times: int) -> None:
        """Send a signal, and wait until it was counted ``times`` times."""
        os.kill(os.getpid(), number)
        with trio.fail_after(PATIENCE_S):
            while self.counts.get(number.name, 0) < times:
                await trio.sleep(0.001)


@pytest.fixture
async def heard(nursery: trio.Nursery) -> SignalledNode:
    this = SignalledNode()
    await nursery.start(obey_signals, this.stopping, this.ended.set, this.counts, this.state, this.reload)
    return this


async def test_signals_hup_and_usr1_are_counted_and_do_not_stop(
    heard: SignalledNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Both kill a process without a handler."""
    caplog.set_level(logging.INFO)
    await heard.send(signal.SIGHUP, 1)
    await heard.send(signal.SIGHUP, 2)
    await heard.send(signal.SIGUSR1, 1)
    assert not heard.ended.is_set() and not heard.stopping.is_set()
    said = caplog.text
    assert heard.reloads == 2
    for line in ("node edge-0, edge, incarnation 12", "map epoch 4", "clients: 7", "drops_total: closed 1, slow 3"):
        assert f"state: {line}" in said
    assert "state: lease: no" in said


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_signals_first_term_stops_in_order_and_the_second_at_once(
    heard: SignalledNode, second: signal.Signals
) -> None:
    await heard.send(signal.SIGTERM, 1)
    assert heard.stopping.is_set() and not heard.ended.is_set()
    await heard.send(second, 2 if second == signal.SIGTERM else 1)
    assert heard.ended.is_set()


async def test_signals_int_ends_at_once(heard: SignalledNode) -> None:
    await heard.send(signal.SIGINT, 1)
    assert heard.ended.is_set() and not heard.stopping.is_set()


async def test_signals_hanging_stop_is_ended(heard: SignalledNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "STOP_S_MAX", 0.01)
    await heard.send(signal.SIGTERM, 1)
    with trio.fail_after(PATIENCE_S):
        await heard.ended.wait()


def test_state_lines_are_bounded() -> None:
    """For any number and length of metrics."""
    metrics = metrics_of_an_edge()
    many: Any = {(f"reason {number}" * 5,): 1.0 for number in range(1_000)}
    metrics.counter("long_total", "", lambda: many, ("reason",))
    for number in range(500):
        metrics.gauge(f"gauge_{number}", "", lambda: 1.0)
    lines = state_lines(["node edge-0"], metrics)
    assert len(lines) == LINES_MAX + 1 and lines[-1].endswith("lines more")
    assert max(map(len, lines)) <= LINE_CHARS_MAX + 4
