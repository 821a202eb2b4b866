"""Which tests stay together when several workers share them."""

from pathlib import Path

from tests.workers import TOGETHER, group_of

ROOT = Path(__file__).parent.parent


def test_clusters_and_jobs_stay_together_and_other_files_whole() -> None:
    """A cluster never runs beside another one of these, and Spark is started once."""
    assert group_of("tests/e2e/test_kills.py::test_any") == group_of("tests/chaos/test_real_cluster.py::test_any[1]")
    assert group_of("tests/jobs/test_audit.py::test_any") == group_of("tests/jobs/test_prune.py::test_any") == "jobs"
    assert group_of("tests/wire/test_a.py::test_any[x::y]") == "tests/wire/test_a.py"
    assert group_of("tests/test_rooms.py::test_any") == "tests/test_rooms.py"
    assert all(list((ROOT / folder).glob("test_*.py")) for folder in TOGETHER)
