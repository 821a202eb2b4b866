"""The recorder against a broker that is not ours: clean while it is well, found out when it is killed."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from mqtt.encode import encode_packet
from mqtt.packets import Connack, Connect, Packet, Suback, Subscribe
from mqtt.stream_decoder import StreamDecoder
from stratamq.history.check import judge
from stratamq.history.checkers.unavailability import gaps
from stratamq.history.history import parse_history
from stratamq.history.operations import Kind
from stratamq.history.recorder import RecordSettings, parse_address, record
from stratamq.history.run import Faults, Run
from stratamq.history.verdict import HistoryVerdict
from stratamq.history.workloads import WORKLOADS
from tests.patience import PATIENCE_S
from tests.stratamq.history.mosquitto import INSTALLED, Mosquitto, running_mosquitto

needs_mosquitto = pytest.mark.skipif(not INSTALLED, reason="Mosquitto is not installed")


async def recorded(
    broker: Mosquitto, workload: str, seconds: float, faults: Faults | None = None, drain_s: float = 5.0
) -> HistoryVerdict:
    settings = RecordSettings(
        brokers=tuple(("127.0.0.1", port) for port in broker.ports),
        workload=workload,
        seconds=seconds,
        seed=7,
        drain_s=drain_s,
        operations_per_s=40,
        detection_s=1.0,
        prepare_s=1.0,
    )
    sink = io.BytesIO()
    with trio.fail_after(PATIENCE_S):
        await record(settings, sink, faults)
    history = parse_history(sink.getvalue())
    doors = {connect.invoke.target for connect in history.of_kind(Kind.CONNECT)}
    assert len(doors) == len(broker.ports), "clients change their address"
    return judge(history)


MUST_HAVE_CHECKED = {
    "queue": ("lost", "duplicate", "order", "session_present"),
    "routes": ("subscribe_barrier", "unsubscribe_barrier"),
    "takeover": ("single_owner", "session_present", "lost"),
    "retained": ("retained_register",),
    "wills": ("will_once",),
    "shared": ("shared_group",),
    "rebalance": ("lost", "retained_register", "single_owner"),
}


@needs_mosquitto
async def test_a_healthy_broker_is_clean(tmp_path: Path) -> None:
    """All promises, all workloads at once; every checker that a workload is for had something to check."""
    verdicts: dict[str, HistoryVerdict] = {}

    async def run_workload(broker: Mosquitto, workload: str) -> None:
        verdicts[workload] = await recorded(broker, workload, seconds=2.0)

    async with running_mosquitto(tmp_path) as broker, trio.open_nursery() as nursery:
        for workload in WORKLOADS:
            nursery.start_soon(run_workload, broker, workload)
    for workload, verdict in verdicts.items():
        assert verdict.clean, (workload, [finding.message for finding in verdict.findings])
        checked = {name: verdict.reports[name].checked for name in MUST_HAVE_CHECKED[workload]}
        assert all(number >= 10 for number in checked.values()), (workload, checked)


@needs_mosquitto
async def test_a_killed_broker_without_persistence_loses(tmp_path: Path) -> None:
    """The durable subscriber is away when the broker dies with its queue: lost, and its session is not present."""
    async with running_mosquitto(tmp_path) as broker:

        async def kill_and_restart(run: Run) -> None:
            away = run.clients[0]  # the subscriber that takes everything
            for _ in range(2):
                await trio.sleep(0.5)
                with trio.move_on_after(0.5):
                    while True:  # it comes back at once, so send it away until something must have been queued
                        away.drop()
                        await trio.sleep(0.005)
                run.mark(Kind.KILL, "broker")
                await broker.kill()
                await broker.start()
                run.mark(Kind.RESTART, "broker")

        verdict = await recorded(broker, "queue", 2.5, kill_and_restart, drain_s=1.5)
    assert verdict.complete
    assert verdict.reports["lost"].found > 0
    assert verdict.reports["session_present"].found > 0
    assert verdict.reports["aborted_reads"].found == 0
    assert any("after 2 faults" in note for note in verdict.reports["unavailability"].notes)


@needs_mosquitto
async def test_a_killed_broker_without_persistence_forgets_retained_values_and_wills(tmp_path: Path) -> None:
    verdicts: dict[str, HistoryVerdict] = {}

    async def run_workload(workload: str) -> None:
        folder = tmp_path / workload
        folder.mkdir()
        async with running_mosquitto(folder) as broker:

            async def kill(run: Run) -> None:
                await trio.sleep(1.2)  # longer than the work: nothing is written afterwards
                run.mark(Kind.KILL, "broker")
                await broker.kill()
                await broker.start()

            verdicts[workload] = await recorded(broker, workload, 1.0, kill, drain_s=1.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_workload, "retained")
        nursery.start_soon(run_workload, "wills")
    assert verdicts["retained"].reports["retained_register"].found > 0
    assert verdicts["wills"].reports["will_once"].found > 0


class HangsUpOnce:
    """A broker that ends the connection of each client at its first SUBSCRIBE, and answers the next ones."""

    def __init__(self) -> None:
        self.clients: set[str] = set()  # whose first SUBSCRIBE has come

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):  # its clients leave as they like
                await self._answer(stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        decoder, client = StreamDecoder(connect_first=True), ""
        async for data in stream:
            for packet in decoder.feed(data):
                if isinstance(packet, Connect):
                    client = packet.client_id
                    answer: Packet = Connack(client in self.clients)
                elif isinstance(packet, Subscribe):
                    if client not in self.clients:
                        self.clients.add(client)
                        return
                    answer = Suback(packet.packet_identifier, [1])
                else:
                    continue
                await stream.send_all(encode_packet(answer, decoder.protocol_version))


async def test_who_was_cut_off_asks_again() -> None:
    """A SUBSCRIBE that a broker's end cut off is no wait of as long as the client's own pace."""
    broker, sink = HangsUpOnce(), io.BytesIO()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, broker.serve, 0, host="127.0.0.1"))
        door = listeners[0].socket.getsockname()[:2]
        settings = RecordSettings((door,), "routes", 2.0, 7, operations_per_s=0.05, drain_s=0.1, prepare_s=1.0)
        await record(settings, sink)
        nursery.cancel_scope.cancel()
    waits = [gap for gap in gaps(parse_history(sink.getvalue())) if gap.kind is Kind.SUBSCRIBE]
    assert {gap.process for gap in waits} == {"s0", "s1", "s2", "s3"} and len(broker.clients) == 4
    assert all(gap.ok is not None and gap.length_s < 10.0 for gap in waits), waits


async def test_recorder_without_broker_ends_and_records_failure(tmp_path: Path) -> None:
    """Every wait of the recorder is bounded."""
    broker = Mosquitto(tmp_path, persistence=False)  # never started
    with trio.fail_after(PATIENCE_S):
        verdict = await recorded(broker, "queue", 0.3, drain_s=0.3)
    assert verdict.reports["unavailability"].found > 0
    assert not verdict.clean


@pytest.mark.parametrize("text", ["", "host", "host:", ":1883", "host:x", "host:0", "host:65536"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("broker.example:1883") == ("broker.example", 1883)
    assert parse_address("[::1]:1884") == ("::1", 1884)
