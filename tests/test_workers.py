"""Grouping of tests by worker, and the order of groups."""

from collections import deque
from pathlib import Path

from tests.workers import AT_ONCE, CLUSTERS, JOBS, LONG, choose, group_of

ROOT = Path(__file__).parent.parent


def test_file_stays_whole_and_spark_starts_once() -> None:
    assert group_of("tests/jobs/test_audit.py::test_any") == group_of("tests/jobs/test_prune.py::test_any") == "jobs"
    assert list((ROOT / JOBS).glob("test_*.py"))
    assert group_of("tests/wire/test_a.py::test_any[x::y]") == "tests/wire/test_a.py"
    assert group_of("tests/test_structure.py::test_any") == "tests/test_structure.py"


def test_at_most_two_workers_have_clusters() -> None:
    """A worker that may have a cluster takes one; a worker with only a third one left ends."""
    cluster, other, jobs = "tests/e2e/test_a.py", "tests/wire/test_a.py", "jobs"
    assert all(list((ROOT / folder).glob("test_*.py")) for folder in CLUSTERS) and AT_ONCE == 2
    assert choose([other, jobs, cluster], [], [[], []]) == cluster
    assert choose([other, jobs, cluster], [], [[cluster], [other]]) == cluster
    assert choose([other, cluster], [], [[cluster], [other, cluster]]) == other
    assert choose([other, jobs, cluster], [other, cluster], [[cluster], []]) == cluster
    assert choose([cluster], [other], [[cluster], [cluster]]) is None
    assert choose([other, jobs], [], [[cluster], [cluster]]) == jobs, "it lasts"


def test_long_files_exist() -> None:
    assert all((ROOT / group).exists() for group in LONG if group != "jobs")


def test_three_workers_run_all_groups() -> None:
    """Each takes the next group when it has one left, in any timing."""
    files = [*(f"tests/e2e/test_{n}.py" for n in range(9)), *(f"tests/mqtt/test_{n}.py" for n in range(9))]
    waiting, done = list(files), []
    workers: list[deque[str]] = [deque() for _ in range(3)]
    for turn in range(100):
        for number, own in enumerate(workers):
            others = [list(other) for other in workers if other is not own]
            if len(own) < 2 and (group := choose(waiting, list(own), others)):
                waiting.remove(group)
                own.append(group)
            assert sum(any(group.startswith(CLUSTERS) for group in each) for each in workers) <= AT_ONCE
            if own and turn % (number + 1) == 0:
                done.append(own.popleft())
    assert sorted(done) == sorted(files)
