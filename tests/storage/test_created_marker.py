"""A store that began empty reports that in every incarnation until the map records it."""

from pathlib import Path

import pytest

from storage.store.created_marker import CreatedMarker
from tests.simulation.scene import Scene


def test_created_marker_survives_the_process(tmp_path: Path) -> None:
    CreatedMarker(tmp_path).write()
    assert CreatedMarker(tmp_path).stands
    CreatedMarker(tmp_path).remove()
    assert not CreatedMarker(tmp_path).stands


@pytest.mark.parametrize("short_s", [0.001, 2.0])
def test_empty_disk_is_incomplete_in_its_second_incarnation(short_s: float) -> None:
    """It became primary with an empty state: a lost session must be refused, not replaced."""
    scene = Scene(edges=2, storages=1, replicas=1, min_in_sync=1, partitions=4)
    scene.kill("s1")
    scene.cluster.storage("s1").disk.wipe()
    scene.start("s1")
    scene.run(short_s)  # until before, or until after the map has recorded it
    scene.kill("s1")
    scene.start("s1")
    scene.run(3.0)
    assert [placement.primary for placement in scene.map.partitions] == [""] * 4
