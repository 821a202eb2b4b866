"""The row ``fleet`` with few clients."""

from pathlib import Path

import pytest
import trio

from tests.chaos.fleet import run_fleet
from tests.chaos.real_cluster import Shape, real_cluster
from tests.chaos.schedule import draw


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_each_will_of_a_fleet_reaches_each_watcher_once(seed: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with real_cluster(tmp_path / "cluster", Shape(1, 3, 2), seed) as cluster:
            schedule = draw("fleet", seed, cluster.nodes(), 20.0)
            result = await run_fleet(cluster, schedule, tmp_path, clients=300)
            assert result.clean and not result.slow, result

    trio.run(run)
