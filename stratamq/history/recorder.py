"""``stratamq record``: one workload against any broker, from the first CONNECT to the end of the quiet phase.

Runs the phases of a recording. ``workloads/`` define the operations, the caller injects faults (``faults``), and
checkers examine the result.
"""

from __future__ import annotations

import trio

from stratamq.history.client import Address
from stratamq.history.operations import Header, Kind
from stratamq.history.run import Faults, RecordSettings, Run
from stratamq.history.workloads import WORKLOADS
from stratamq.history.writer import ByteSink, HistoryWriter

__all__ = ["RecordSettings", "parse_address", "record"]


def parse_address(text: str) -> Address:
    """Parse HOST:PORT or [IPv6]:PORT.

    Raises:
        ValueError: The text has neither form.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def record(settings: RecordSettings, sink: ByteSink, faults: Faults | None = None) -> str:
    """Run one workload and write its history; return one line of summary.

    Args:
        faults: Injects faults during the work, marks them in the history, and reverts them before it returns; the work
            phase lasts at least until then.
    """
    writer = HistoryWriter(sink, _header(settings))
    async with trio.open_nursery() as nursery:
        run = Run(settings, writer, nursery)
        workload = WORKLOADS[settings.workload](run)
        await workload.prepare()
        async with trio.open_nursery() as busy:
            busy.start_soon(workload.work)
            async with trio.open_nursery() as until:
                until.start_soon(trio.sleep, settings.seconds)
                if faults is not None:
                    until.start_soon(faults, run)
            busy.cancel_scope.cancel()
        run.mark(Kind.QUIET)
        await workload.finish()
        await run.drain(workload.least_quiet_s)
        await workload.read_final_state()
        run.mark(Kind.DRAINED)
        for client in run.clients:
            client.give_up()
        nursery.cancel_scope.cancel()
    return f"{writer.records_written} records, {run.now_ns() / 1e9:.1f} s"


def _header(settings: RecordSettings) -> Header:
    return Header(
        workload=settings.workload,
        seed=settings.seed,
        broker=tuple(f"{host}:{port}" for host, port in settings.brokers),
        software=settings.software,
        settings={
            "seconds": settings.seconds,
            "clients": settings.clients,
            "operations_per_s": settings.operations_per_s,
            "detection_s": settings.detection_s,
            "drain_s": settings.drain_s,
        },
    )
