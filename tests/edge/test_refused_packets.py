"""Packets that are refused, over and over: nothing of them stays in memory."""

import gc
import resource
from pathlib import Path

import pytest

from tests.edge.edge_harness import Edge
from tests.mqtt.test_vectors import ALL

REFUSED = [vector for vector in ALL if not vector.valid]
PAGE_BYTES = resource.getpagesize()
MIB = 1024 * 1024


def resident() -> int:
    """Return the bytes of this process, without what the collector would free."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def refuse_all(edge: Edge, rounds: int) -> None:
    """Give each refused packet to a connection of its own: as its first one, and behind a CONNECT."""
    for _ in range(rounds):
        for vector in REFUSED:
            for session in (edge.accept(), edge.client("c", version=vector.version)):
                session.send(vector.raw)
                session.drop()
        edge.seen.clear()
        edge.core.hot.dirty_conns()  # as the shell does that flushes them
        edge.turn(1.0)
        edge.core.hot.sweep(edge.ns)


@pytest.mark.parametrize("rounds", [5, pytest.param(500, marks=pytest.mark.slow)])
def test_refused_packets_leave_no_memory(rounds: int) -> None:
    """NIST: protect. Whatever is wrong with a packet (CVE-2023-3592: with a will): less than 1 MiB for all of them."""
    assert len(REFUSED) > 100
    edge = Edge()
    refuse_all(edge, 5)
    before = resident()
    refuse_all(edge, rounds)
    growth = resident() - before
    assert growth < MIB, f"{growth / 1024:.0f} KiB after {2 * rounds * len(REFUSED)} refused packets"
