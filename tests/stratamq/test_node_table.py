"""Answers of nodes to an order, as a table."""

from stratamq.cli.node_table import node_table
from stratamq.cli.sent_traced import branches


def row(node: str, *lines: str, count: int = 0, error: str = "") -> dict[str, object]:
    return {"node": node, "done": not error, "count": count, "lines": list(lines), "error": error}


def test_node_table_facts_are_columns_and_dry_run_omits_done() -> None:
    """They stood in one column, and a trial said DONE yes."""
    rows = [row("s1", "entries 5", "bytes 2048", "will none", "expires_in_s 3600", count=1)]
    facts = {"ENTRIES": 5, "BYTES": "2 KiB", "WILL": "none", "EXPIRES_IN": "1h"}
    assert node_table(rows, tried=True) == [{"node": "s1", "count": 1, **facts}]
    assert node_table(rows, tried=False)[0]["done"] is True


def test_a_column_that_every_row_leaves_empty_is_none() -> None:
    assert node_table([row("e1"), row("e2")], tried=False) == [
        {"node": "e1", "done": True},
        {"node": "e2", "done": True},
    ]
    told = node_table([row("e1", count=2), row("e2", error="no such file")], tried=False)
    assert told[0] == {"node": "e1", "done": True, "count": 2, "error": ""}
    assert told[1] == {"node": "e2", "done": False, "count": 0, "error": "no such file"}


def test_other_lines_stay_lines() -> None:
    """As those of a trace; a trial that changes nothing has a column that says so."""
    assert node_table([row("e1", "plant: running")], tried=False)[0]["lines"] == ["plant: running"]
    assert node_table([row("e1")], tried=True) == [{"node": "e1", "lines": []}]
    for lines in (("entries 5", "entries 6"), ("Entries 5",), ("users: no such file",), ("entries",)):
        assert node_table([row("e1", *lines)], tried=False)[0]["lines"] == list(lines)


def test_a_tree_shows_which_lines_are_of_one_branch() -> None:
    """Each line ended its branch."""
    assert branches([0, 1, 1, 2, 2, 1]) == ["└─ ", "   ├─ ", "   ├─ ", "   │  ├─ ", "   │  └─ ", "   └─ "]
    assert branches([]) == [] and branches([0, 0]) == ["├─ ", "└─ "]
