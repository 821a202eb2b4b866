"""Grafana's dashboards ask for families that nodes have."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BOARDS = sorted((DOCS / "monitoring").glob("grafana-*.json"))


def test_there_are_four() -> None:
    assert [board.stem for board in BOARDS] == [
        f"grafana-{name}" for name in ("cluster", "edges", "routers", "storage")
    ]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_each_expression_names_documented_families(board: Path) -> None:
    """docs/metrics.md is compared with the pages of a running cluster elsewhere."""
    known = set(re.findall(r"`([a-z0-9_]+)(?:\{[^}`]*\})?`", (DOCS / "metrics.md").read_text()))
    expressions = [target["expr"] for panel in json.loads(board.read_text())["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        names = re.findall(r"stratamq_(\w+)", expression)
        assert names, expression
        for name in names:
            assert name in known or re.sub(r"_(bucket|count|sum)$", "", name) in known, name
