"""A bridge between a StrataMQ cluster and a Mosquitto: its edge and primary are killed, its links slow and cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateways.bridges.cluster_fault_run import ClusterFaults, cluster_fault_run
from tests.stratamq.history.mosquitto import INSTALLED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="mosquitto is not installed (Debian: mosquitto)"),
]

KILLS = ClusterFaults(edge_kills=20, primary_kills=10)
LINK = ClusterFaults(cuts=2, slow_link=True)
NEAR = ClusterFaults(near_cuts=2)
GUARANTEES = [pytest.param(1, "", id="at least once"), pytest.param(2, "exactly_once = true", id="exactly once")]


async def run(folder: Path, faults: ClusterFaults, qos: int, lines: str, copies: int = 3) -> None:
    """No loss, order in each topic, and only messages open at a fault arrive twice, or none."""
    outcome = await cluster_fault_run(folder, faults, qos=qos, lines=lines, copies=copies)
    assert outcome.verdict.clean, [finding.message for finding in outcome.verdict.findings[:5]]
    assert outcome.received == outcome.published
    assert outcome.unexplained == 0
    if lines:
        assert outcome.repeats == 0


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize(("qos", "lines"), GUARANTEES)
async def test_bridge_survives_kills_of_edge_and_primary(tmp_path: Path, qos: int, lines: str, copies: int) -> None:
    await run(tmp_path, KILLS, qos, lines, copies)


@pytest.mark.parametrize(("qos", "lines"), GUARANTEES)
async def test_bridge_survives_slow_and_cut_link(tmp_path: Path, qos: int, lines: str) -> None:
    """200 ms, stalls of 0.2 to 3 s on 5 % of the writes, cuts of 30 s."""
    await run(tmp_path, LINK, qos, lines)


@pytest.mark.parametrize(("qos", "lines"), GUARANTEES)
async def test_bridge_survives_cut_cluster_links(tmp_path: Path, qos: int, lines: str) -> None:
    """30 s: longer than keep-alives, so that each side ends the connection."""
    await run(tmp_path, NEAR, qos, lines)
