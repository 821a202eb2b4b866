"""Operations in one table: progress, remaining work, and cancel command."""

import pytest

from admin.operations import find, operations
from conf.errors import ExitCode, UserError

RING = {"id": 3, "phase": "running", "done": 4, "total": 10, "eta_s": 6.0, "errors": ["partition 7: s1 is gone"]}
EDGE = {"node": "edge-0", "tier": "edge", "state": "draining", "connected": 12}
STORAGE = {"node": "storage-1", "tier": "storage", "state": "draining", "replicas": 5, "joining": 1, "shards": 0}
EXPORT = {"node": "storage-0", "done": False, "error": "", "partitions": 8, "finished": 3, "rows": 90}


def test_operations_report_remaining_work() -> None:
    rows = operations(RING, [EDGE, STORAGE, EDGE | {"node": "edge-1", "state": "active"}], {"storage-0": EXPORT})
    assert [(row.id, row.state, row.left, row.unit, row.cancel) for row in rows] == [
        ("rebalance-3", "running", 6, "moves", "ring abort"),
        ("drain-edge-0", "draining", 12, "clients", "node undrain"),
        ("drain-storage-1", "draining", 6, "copies", "node undrain"),
        ("export-storage-0", "running", 5, "partitions", "store export cancel"),
    ]
    assert rows[0].detail == "partition 7: s1 is gone" and rows[0].eta_s == 6.0


@pytest.mark.parametrize(
    ("ring", "export", "state"),
    [
        ({"phase": "done"}, {"done": True}, "done"),
        ({"phase": "aborted"}, {"done": True, "error": "cancelled"}, "cancelled"),
        ({"phase": "aborting"}, {"done": True, "error": "no room"}, "failed"),
    ],
)
def test_operations_ended_have_no_cancel_command(
    ring: dict[str, object], export: dict[str, object], state: str
) -> None:
    """A drained node can: it is used again."""
    emptied = EDGE | {"connected": 0}
    moved, drained, written = operations(RING | ring, [emptied], {"storage-0": EXPORT | export})
    assert (moved.cancel, written.cancel, written.state) == ("", "", state)
    assert (drained.state, drained.cancel) == ("drained", "node undrain")


def test_find_unknown_operation_lists_existing() -> None:
    for rows, text in ((operations(RING, [], {}), "existing: rebalance-3"), ([], "there are none")):
        with pytest.raises(UserError) as refused:
            find(rows, "rebalance-4")
        assert text in refused.value.message and refused.value.exit_code == ExitCode.FAILED
    assert operations({"id": None, "phase": "none", "done": 0, "total": 0}, [], {}) == []
