"""Each drop counter has its reason, and each reason its counter."""

import re
from pathlib import Path

import pytest

from conf.drop_reasons import NO_DROPS, REASON_OF, REASONS, REPEATS, count_drops, count_repeats
from edge.loop.counters import COUNTERS

ROOT = Path(__file__).resolve().parent.parent.parent
COUNTED = re.compile(r"\bcount\((?:[^()]|\([^()]*\))*\)")
NAME = re.compile(r'"([a-z][a-z0-9_]*)"')
SOUNDS = re.compile(r"drop|lost|miss|twin|repeat|discard|thrown")


def counted() -> set[str]:
    """Return every counter name of edges, storage nodes and links, and those of the loop."""
    names = set(COUNTERS)
    for room in ("edge", "storage", "router", "wire"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for call in COUNTED.findall(path.read_text()):
                names.update(NAME.findall(call))
    return names


def test_drop_counters_have_reasons() -> None:
    """A new counter fails here until it is in a table: with a reason, as a repeat, or as not a message drop."""
    tables = REASON_OF.keys() | REPEATS.keys() | NO_DROPS.keys()
    names = counted()
    assert len(names) > 100, "the pattern finds no calls"
    assert {name for name in names if SOUNDS.search(name)} - tables == set()
    assert tables - names - {"reports_dropped"} == set(), "nothing counts these"


def test_drop_reasons_are_used_and_counters_unique() -> None:
    assert set(REASON_OF.values()) == REASONS.keys()
    assert not REASON_OF.keys() & REPEATS.keys() and not (REASON_OF.keys() | REPEATS.keys()) & NO_DROPS.keys()


@pytest.mark.parametrize("name", sorted(REASON_OF))
def test_drops_are_summed_by_reason(name: str) -> None:
    found = count_drops({name: 3, "turns": 9})
    assert found.keys() == {(reason,) for reason in REASONS}
    assert {reason: count for (reason,), count in found.items() if count} == {REASON_OF[name]: 3.0}


def test_repeats_are_counted_apart() -> None:
    assert count_repeats({"repeats": 2, "dropped_repeated": 3, "dropped_slow": 4}) == 5.0


def test_metrics_page_lists_every_drop_reason() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M)[: len(REASONS)] == sorted(REASONS.items())
