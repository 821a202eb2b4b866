"""One short schedule on real processes in every run: an edge and the storage node are killed; no message is lost."""

import datetime
from pathlib import Path

from conf.settings import load
from membership.settings import MembershipSettings
from stratamq.local_plan import UpOptions, make_plan
from tests.chaos.__main__ import run_one
from tests.chaos.real_cluster import Shape, real_cluster, spread
from tests.chaos.schedule import Fault, Schedule, Verb


async def test_kills_of_edge_and_storage_lose_no_message(tmp_path: Path) -> None:
    faults = (
        Fault(Verb.KILL, ("edge-1",), 0.5, 0.5),
        Fault(Verb.KILL, ("storage-0",), 0.5, 0.5),
    )
    async with real_cluster(tmp_path / "cluster", Shape(), 1) as cluster:
        result = await run_one(cluster, Schedule("F01", 1, faults), "queue", 4.0, tmp_path / "kept", every_fault=True)
    assert result.found == {}
    assert result.ended == ()
    assert result.complete
    assert result.accepted > 20
    assert result.checked["lost"] > 20
    assert {wait.tier for wait in result.waits} == {"edge", "storage"}  # the kinds depend on the clients' connections


def test_nodes_in_namespaces_have_readable_settings(tmp_path: Path) -> None:
    """Each node listens at its own address, its metrics page too."""
    plans = make_plan(UpOptions(2, 3, 3, tmp_path, 0, 0), tmp_path, datetime.datetime.now(datetime.UTC)).nodes
    addresses = {plan.name: f"10.77.0.{number + 10}" for number, plan in enumerate(plans)}
    spread(plans, addresses.__getitem__)
    for plan in plans:
        config = load(plan.tier, file=plan.config, environment={}, membership=MembershipSettings)
        assert config.metrics.bind == config.node.link_bind == addresses[plan.name]
