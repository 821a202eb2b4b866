"""Which tests stay together when several workers share them."""

from pathlib import Path

from tests.workers import AT_ONCE, CLUSTERS, JOBS, group_of

ROOT = Path(__file__).parent.parent


def test_clusters_share_two_groups_and_other_files_stay_whole() -> None:
    """Two clusters stand beside each other and never three, tests of a file share its fixtures, Spark starts once."""
    names = [f"{folder}{file.name}" for folder in CLUSTERS for file in (ROOT / folder).glob("test_*.py")]
    groups = [group_of(f"{name}::test_any[1]") for name in names]
    shares = {group: groups.count(group) for group in groups}
    assert len(shares) == AT_ONCE and min(shares.values()) > len(names) // 3
    assert all(group_of(f"{name}::test_other") == group for name, group in zip(names, groups, strict=True))
    assert group_of("tests/jobs/test_audit.py::test_any") == group_of("tests/jobs/test_prune.py::test_any") == "jobs"
    assert list((ROOT / JOBS).glob("test_*.py"))
    assert group_of("tests/wire/test_a.py::test_any[x::y]") == "tests/wire/test_a.py"
    assert group_of("tests/test_rooms.py::test_any") == "tests/test_rooms.py"
