"""Listeners of one edge: open and shut together, paused one by one, and their query rows."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from conf.settings import ListenerSettings
from edge.listeners.listener_endpoints import ListenerEndpoints
from edge.listeners.listeners import EdgeListener
from edge.loop.loop import Loop
from tests.edge.edge_harness import Edge
from wire.messages.client_rows import ListenerRow
from wire.messages.orders import NodeOrdered, OrderNode
from wire.queries.source import RowScan


@dataclass
class Accepting:
    """A fake loop that records listening sockets."""

    listening: set[int] = field(default_factory=set)

    def listen(self, listener: socket.socket, _: object) -> None:
        listener.setblocking(False)
        assert listener.fileno() not in self.listening, "twice"
        self.listening.add(listener.fileno())

    def forget_listener(self, listener: socket.socket) -> None:
        self.listening.remove(listener.fileno())

    def kick(self) -> None: ...


class Doorway:
    """Two listeners of an edge."""

    def __init__(self) -> None:
        self.loop = Accepting()
        self.listening = [EdgeListener(ListenerSettings(name=name, port=0, tls=False)) for name in ("one", "two")]
        self.edge = Edge()
        self.taken: list[str] = []
        loop = cast(Loop, self.loop)
        self.doors = ListenerEndpoints(self.edge.core.node, self.listening, loop, self.accept)

    def accept(self, listener: object, fd: int, _: str) -> None:
        assert isinstance(listener, EdgeListener)
        self.taken.append(listener.policy.name)
        socket.socket(fileno=fd).close()

    def order(self, verb: str, name: str, *, dry_run: bool = False) -> NodeOrdered:
        return self.doors.order(OrderNode(7, f"listener {verb}", name, dry_run, "ann", "operator"))

    def takes(self) -> list[bool]:
        found = []
        for listener in self.listening:
            with ExitStack() as stack:
                with suppress(ConnectionRefusedError):
                    stack.enter_context(socket.create_connection(listener.socket.getsockname()))
                    found.append(True)
                    continue
                found.append(False)
        return found

    def states(self) -> list[Any]:
        return [row["state"] for row in self.rows()]

    def rows(self, after: str = "") -> list[dict[str, object]]:
        source = self.doors.look()
        ask = RowScan({}, after, frozenset(source.columns), "viewer", 100, 1.0)
        return [{name: column(each) for name, column in source.columns.items()} for _, each in source.walk(ask)]


@pytest.fixture
def doorway() -> Iterator[Doorway]:
    made = Doorway()
    yield made
    for listener in made.listening:
        listener.socket.close()


def test_paused_listener_refuses_while_others_accept(doorway: Doorway) -> None:
    doorway.doors.open()
    assert doorway.takes() == [True, True] and doorway.states() == ["open", "open"]
    answer = doorway.order("pause", "one")
    assert (answer.count, answer.lines[0], answer.error) == (1, "state paused", "")
    assert doorway.takes() == [False, True] and doorway.states() == ["paused", "open"]
    assert doorway.doors.is_paused("one") and not doorway.doors.is_paused("two")
    assert doorway.taken.count("one") == 1, "who the kernel had taken before is served"
    assert doorway.order("resume", "one").lines[0] == "state open"
    assert doorway.takes() == [True, True] and doorway.states() == ["open", "open"]
    assert [(entry.event, entry.reason, entry.detail) for entry in doorway.edge.core.node.journal.entries] == [
        ("listener", "paused", "one by ann"),
        ("listener", "resumed", "one by ann"),
    ]


def test_repeated_pause_and_dry_run_change_nothing(doorway: Doorway) -> None:
    doorway.doors.open()
    assert doorway.order("pause", "one", dry_run=True).lines[0] == "state paused"
    assert doorway.takes() == [True, True]
    doorway.order("pause", "one")
    assert doorway.order("pause", "one").count == 1
    assert doorway.order("resume", "one", dry_run=True).lines[0] == "state open"
    assert doorway.takes() == [False, True]
    doorway.order("resume", "one")
    doorway.order("resume", "one")
    assert doorway.takes() == [True, True]


def test_pause_outlasts_drain(doorway: Doorway) -> None:
    """The end of a drain opens only listeners without a pause."""
    doorway.doors.open()
    doorway.order("pause", "one")
    doorway.doors.shut()
    assert doorway.takes() == [False, False] and doorway.states() == ["paused", "drained"]
    doorway.doors.open()
    assert doorway.takes() == [False, True]
    doorway.doors.shut()
    assert doorway.order("resume", "one").lines[0] == "state drained"
    assert doorway.takes() == [False, False]
    doorway.doors.open()
    assert doorway.takes() == [True, True]


def test_resume_with_address_in_use_stays_paused(doorway: Doorway) -> None:
    doorway.doors.open()
    doorway.order("pause", "one")
    port = doorway.listening[0].socket.getsockname()[1]
    other = EdgeListener(ListenerSettings(name="other", port=port, tls=False))
    with other.socket:
        other.open()
        answer = doorway.order("resume", "one")
        assert "cannot listen on" in answer.error and doorway.states()[0] == "paused"
    assert not doorway.order("resume", "one").error
    assert doorway.takes() == [True, True]


def test_order_for_unknown_listener_has_no_effect(doorway: Doorway) -> None:
    answer = doorway.order("pause", "three")
    assert (answer.count, answer.lines, answer.error) == (0, [], "")


def test_listener_rows(doorway: Doorway) -> None:
    rows = [msgspec.convert(row, ListenerRow) for row in doorway.rows()]
    port = doorway.listening[0].socket.getsockname()[1]
    assert (rows[0].listener, rows[0].kind, rows[0].bind, rows[0].state) == (
        "one",
        "mqtt",
        f"127.0.0.1:{port}",
        "drained",
    )
    assert (rows[0].connections, rows[0].tls, rows[0].client_certificates, rows[0].anonymous) == (
        0,
        False,
        False,
        False,
    )
    assert [row["listener"] for row in doorway.rows("0")] == ["two"]
