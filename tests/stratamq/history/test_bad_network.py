"""A bad network is no broken promise: a healthy broker behind resets, stalls and delays is still found clean."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import trio

from stratamq.history.check import judge
from stratamq.history.history import parse_history
from stratamq.history.operations import Kind
from stratamq.history.recorder import RecordSettings, record
from stratamq.history.run import Run
from tests.chaos.fault_proxy import TcpFaultProxy
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto


async def harass(proxy: TcpFaultProxy, run: Run, seconds: float) -> None:
    """Do something to the link every few hundred milliseconds; leave it healthy."""
    rng = random.Random("harass")
    with trio.move_on_after(seconds):
        while True:
            await trio.sleep(rng.uniform(0.1, 0.3))
            what = rng.choice(("reset", "budget", "hold", "delay"))
            run.mark(Kind.FAULT, proxy.name, what)
            if what == "reset":
                proxy.reset()
            elif what == "budget":  # every connection breaks somewhere in the middle of a packet
                proxy.to_client.set(byte_budget=rng.randrange(200), reset_at_budget=True)
            elif what == "hold":
                rng.choice((proxy.to_server, proxy.to_client)).set(hold=True)
            else:
                proxy.to_client.set(delay_s=0.02, jitter_s=0.05)
            await trio.sleep(rng.uniform(0.05, 0.2))
            proxy.heal()
            run.mark(Kind.HEAL, proxy.name, what)
    proxy.heal()


@pytest.mark.slow  # real time and a real network decide what happens: not for a run that must be the same each time
@pytest.mark.skipif(not INSTALLED, reason="Mosquitto is not installed")
async def test_a_healthy_broker_behind_a_bad_network_is_clean(tmp_path: Path) -> None:
    sinks = {workload: io.BytesIO() for workload in ("queue", "routes", "retained", "wills", "takeover")}
    async with running_mosquitto(tmp_path) as broker, trio.open_nursery() as proxies:

        async def run_workload(number: int, workload: str) -> None:
            proxy = TcpFaultProxy(("127.0.0.1", broker.port), seed=number, name=workload)
            await proxies.start(proxy.run)
            address = ("127.0.0.1", proxy.port)
            settings = RecordSettings((address,), workload, 2.0, seed=21, operations_per_s=40, detection_s=1.0)

            async def faults(run: Run) -> None:
                await harass(proxy, run, 2.0)

            await record(settings, sinks[workload], faults)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as runs:
                for number, workload in enumerate(sinks):
                    runs.start_soon(run_workload, number, workload)
        proxies.cancel_scope.cancel()
    for workload, sink in sinks.items():
        history = parse_history(sink.getvalue())
        verdict = judge(history)
        assert verdict.clean, (workload, [finding.message for finding in verdict.findings])
        assert sum(mark.kind is Kind.FAULT for mark in history.marks) >= 4
    queue = parse_history(sinks["queue"].getvalue())
    assert any(operation.resends for operation in queue.of_kind(Kind.PUBLISH)), "nothing was sent again"
