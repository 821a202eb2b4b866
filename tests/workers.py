"""Groups tests for several workers (``make test`` has three; most tests wait, on two cores).

A file stays whole, for its module fixtures; those of the jobs share one Spark session. Files that
start clusters go first, on at most two workers: three clusters would wait for each other's processors.
The other worker computes meanwhile, the long files first, so that none of them starts last.
"""

from typing import Any

__all__ = ["AT_ONCE", "CLUSTERS", "JOBS", "LONG", "choose", "group_of"]

CLUSTERS = ("tests/e2e/", "tests/chaos/")
AT_ONCE = 2
JOBS = "tests/jobs/"
# Few tests that last: groups with many tests go first otherwise, and the last ones shall be short.
LONG = {
    "jobs",
    *(
        f"tests/e2e/test_{name}.py"
        for name in [
            "cluster_users",
            "damaged_store",
            "denial",
            "drain_history",
            "export",
            "hostile",
            "hostile_subscribers",
            "kills",
            "many_partitions",
            "moves",
            "recover",
        ]
    ),
    "tests/gateways/datagrams/test_processes.py",
    "tests/membership/test_simulation.py",
    "tests/stratamq/test_readme.py",
    "tests/stratamq/test_wheel.py",
}


def group_of(test: str) -> str:
    """Return the group of a test by its node ID; one worker runs a group, in order."""
    path = test.split("::", 1)[0]
    return "jobs" if path.startswith(JOBS) else path


def is_cluster(group: str) -> bool:
    """Return whether the tests of a group start clusters."""
    return group.startswith(CLUSTERS)


def choose(waiting: list[str], own: list[str], others: list[list[str]]) -> str | None:
    """Return the group that a worker takes next, None if each pending one would exceed the limit.

    Args:
        waiting: Groups without a worker, those with many tests first.
        own: Groups whose tests this worker has before it.
        others: The same of each other worker.
    """
    taken = sum(any(map(is_cluster, groups)) for groups in others)
    may_have = taken < AT_ONCE or any(map(is_cluster, own))
    allowed = [group for group in waiting if may_have or not is_cluster(group)]
    # A worker that may have a cluster takes one: clusters wait more than they compute, so they run well beside others.
    return min(allowed, key=lambda group: (not is_cluster(group), group not in LONG), default=None)


def scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler that assigns groups instead of single tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _groups(self, node: Any) -> list[str]:
            return [group for group, tests in self.assigned_work[node].items() if not all(tests.values())]

        def _assign_work_unit(self, node: Any) -> None:
            others = [self._groups(other) for other in self.nodes if other is not node]
            group = choose([*self.workqueue], self._groups(node), others)
            if group is None:
                node.shutdown()  # after its remaining tests: the others run the rest
                return
            self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)
