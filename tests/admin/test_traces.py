"""Events of several nodes merge into one trace: in causal order, with origins for pushes, without other messages."""

from typing import Any

from admin.traces import LATEST_US, ClockOffset, in_order, sent_here, way_of
from wire.messages.node_rows import TraceEventRow

NO_CLOCKS: dict[str, ClockOffset] = {}


def event(node: str, stage: str, at_us: int, origin: str | None = "e0/1/7", **fields: Any) -> tuple[str, TraceEventRow]:
    return node, TraceEventRow(stage=stage, at_us=at_us, origin=origin, **fields)


def test_in_order_uses_stages_before_clocks() -> None:
    """A storage node with a late clock reports a message as queued before it was received."""
    rows = [
        event("s0", "committed", 40),
        event("s0", "queued", 30),
        event("e1", "written", 10),
        event("e0", "received", 1_000),
        event("e0", "acknowledged", 1_500),
        event("e0", "forwarded", 1_001),
    ]
    stages = [one.event.stage for one in in_order(rows, NO_CLOCKS)]
    assert stages == ["received", "forwarded", "queued", "committed", "written", "acknowledged"]


def test_in_order_clamps_times_to_calendar() -> None:
    """A hostile node may send any number: no output fails on it."""
    rows = [event("e0", "received", 2**63), event("e0", "written", -5)]
    assert [one.at_us for one in in_order(rows, NO_CLOCKS)] == [LATEST_US, 0]


def test_in_order_groups_messages() -> None:
    """Each message's events are adjacent, ordered by the first one; events without origin stay in place."""
    rows = [
        event("e0", "written", 50, "e0/1/7"),
        event("e0", "received", 20, "e0/1/8"),
        event("e0", "received", 10, "e0/1/7"),
        event("e0", "subscribed", 15, None),
    ]
    found = [(one.event.stage, one.event.origin) for one in in_order(rows, NO_CLOCKS)]
    assert found == [
        ("received", "e0/1/7"),
        ("written", "e0/1/7"),
        ("subscribed", None),
        ("received", "e0/1/8"),
    ]


def test_in_order_sets_origin_of_push() -> None:
    rows = [
        event("e1", "written", 10, None, session=3, seq=5),
        event("s0", "queued", 5, "e0/1/7", session=3, seq=5),
        event("e1", "written", 11, None, session=3, seq=6),
    ]
    assert [one.event.origin for one in in_order(rows, NO_CLOCKS)] == ["e0/1/7", "e0/1/7", None]


def test_in_order_removes_other_messages() -> None:
    """A node that only knows a mark returns events of every trace: those of other origins are removed."""
    rows = [
        event("e0", "received", 1, "e0/1/7"),
        event("s0", "queued", 2, "e0/1/7", carried=True),
        event("s0", "queued", 2, "e0/1/9", carried=True),
        event("s0", "queued", 2, None, carried=True),
    ]
    assert [(one.event.stage, one.event.origin) for one in in_order(rows, NO_CLOCKS)] == [
        ("received", "e0/1/7"),
        ("queued", "e0/1/7"),
    ]


def test_in_order_shared_copy_has_origin_of_message() -> None:
    rows = [
        event("e0", "received", 1, "e0/1/7"),
        event("e0", "forwarded", 2, "e0/1/8", detail="copy of e0/1/7 for g/a"),
        event("e1", "written", 3, "e0/1/8", client_id="member"),
    ]
    assert {one.event.origin for one in in_order(rows, NO_CLOCKS)} == {"e0/1/7"}


def test_in_order_corrects_clocks_with_error() -> None:
    rows = [event("e0", "received", 10_000), event("s0", "queued", 5_000)]
    first, second = in_order(rows, {"s0": ClockOffset(-5_600, 700), "e0": ClockOffset(0, 600)})
    assert (first.at_us, first.error_us) == (10_000, 600)
    assert (second.at_us, second.error_us) == (10_600, 700)


def test_way_of_returns_tree() -> None:
    """Own clients, other edges with theirs, partitions with entries; events of a copy below it."""
    entry: dict[str, Any] = {"session": 3, "seq": 5, "client_id": "durable"}
    rows = [
        event("e0", "received", 1, detail="by this node"),
        event("e0", "forwarded", 2),
        event("e0", "written", 3, client_id="here", packet=1),
        event("e0", "acked", 9, client_id="here", packet=1),
        event("e1", "accepted", 3),
        event("e1", "written", 4, client_id="there"),
        event("s0", "queued", 4, partition=7, **entry),
        event("s0", "committed", 5, partition=7),
        event("s0", "pushed", 5, partition=7, **entry),
        event("e1", "written", 6, None, **entry),
        event("e1", "acked", 7, None, **entry),
        event("s0", "acked", 8, partition=7, **entry),
        event("e0", "acknowledged", 6),
        event("e0", "received", 100, "e0/1/8"),
    ]
    events = sent_here(in_order(rows, NO_CLOCKS))
    assert [(depth, one.node, one.event.stage) for depth, one in way_of(events)] == [
        (0, "e0", "received"),
        (1, "e0", "forwarded"),
        (1, "e0", "written"),
        (2, "e0", "acked"),
        (1, "e1", "accepted"),
        (2, "e1", "written"),
        (1, "s0", "committed"),
        (2, "s0", "queued"),
        (3, "s0", "pushed"),
        (4, "e1", "written"),
        (5, "e1", "acked"),
        (5, "s0", "acked"),
        (1, "e0", "acknowledged"),
    ]
