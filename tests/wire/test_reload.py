"""A reload puts everything in force or nothing: each part that refuses, at each place, by each way."""

from typing import Any

import pytest

from conf.errors import UserError
from conf.settings import EdgeConfig, NodeConfig, load
from wire.node.reload import LINE_CHARS_MAX, LINES_MAX, NodeReload, Prepared, changed_settings


class Piece:
    """A part that notes what is in force, and refuses where it is told to."""

    def __init__(
        self, name: str, fails: str = "", error: Exception | None = None, settings: tuple[str, ...] = ()
    ) -> None:
        self.name, self.fails, self.error, self.settings = (
            name,
            fails,
            error or UserError(f"{name}.pem:3: broken"),
            settings,
        )
        self.held = "old"

    def _may_fail(self, where: str) -> None:
        if self.fails == where:
            raise self.error

    def load(self, config: NodeConfig) -> Any:
        """Return the new thing."""
        assert config.node.id
        self._may_fail("load")
        return "new"

    def current(self) -> Any:
        """Return what is in force."""
        self._may_fail("current")
        return self.held

    def difference(self, loaded: Any) -> list[str]:
        """Return one line."""
        self._may_fail("difference")
        return [f"{self.name}: {self.held} -> {loaded}"]

    def put(self, loaded: Any) -> None:
        """Hold it, and fail behind that: the worst place."""
        self.held = loaded
        if loaded == "new":
            self._may_fail("put")


def config(*flags: str) -> EdgeConfig:
    """Return an edge's configuration."""
    found = load("edge", environment={}, flags=("edge.listeners.l.port=0", "edge.listeners.l.tls=false", *flags))
    assert isinstance(found, EdgeConfig)
    return found


def reload_of(*pieces: Piece, flags: tuple[str, ...] = ()) -> NodeReload:
    """Return a reload that finds the settings of these flags."""
    reload = NodeReload(config(), lambda: config(*flags))
    for piece in pieces:
        reload.add(piece)
    return reload


def test_all_parts_are_put_in_force_and_the_difference_is_told() -> None:
    pieces = [Piece(name) for name in "abc"]
    reload = reload_of(*pieces)
    outcome = reload.apply(reload.prepare())
    assert outcome.ok and outcome.lines == ("a: old -> new", "b: old -> new", "c: old -> new")
    assert [piece.held for piece in pieces] == ["new"] * 3
    assert reload.outcomes == {"done": 1, "refused": 0}


@pytest.mark.parametrize("where", ["load", "difference", "current", "put"])
@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "error", [UserError("x.pem:3: broken"), OSError(24, "Too many open files"), MemoryError()], ids=repr
)
def test_one_that_refuses_leaves_the_old_state_whole(where: str, index: int, error: Exception) -> None:
    """Whatever fails and wherever: no part keeps anything new, and the refusal is told and counted."""
    pieces = [Piece(name, where if number == index else "", error) for number, name in enumerate("abc")]
    reload = reload_of(*pieces)
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and outcome.lines
    assert [piece.held for piece in pieces] == ["old"] * 3
    assert reload.outcomes == {"done": 0, "refused": 1}
    pieces[index].fails = ""  # mended: the next one takes up all of it
    assert reload.apply(reload.prepare()).ok
    assert [piece.held for piece in pieces] == ["new"] * 3


def test_every_mistake_is_told_at_once() -> None:
    reload = reload_of(Piece("a", "load"), Piece("b"), Piece("c", "load"), flags=("edge.receive_maximum=30",))
    lines = reload.apply(reload.prepare()).lines
    assert [line.split(" ")[0] for line in lines] == ["edge.receive_maximum", "a.pem:3:", "c.pem:3:"]


def test_an_error_of_the_library_is_not_quoted() -> None:
    """Text of an unknown error may hold a part of a secret file."""
    reload = reload_of(Piece("a", "load", ValueError("hunter2")))
    assert reload.apply(reload.prepare()).lines == ("failed by ValueError",)


def test_settings_that_cannot_be_read_change_nothing() -> None:
    piece = Piece("a")
    reload = NodeReload(config(), lambda: config("edge.nonsense=1"))
    reload.add(piece)
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and "edge.nonsense" in outcome.lines[0] and piece.held == "old"


def test_a_setting_that_no_part_takes_up_refuses_the_reload() -> None:
    piece = Piece("a", settings=("logs.level",))
    reload = reload_of(piece, flags=("logs.level=debug", "edge.listeners.l.allow_anonymous=true"))
    outcome = reload.apply(reload.prepare())
    assert outcome.lines == (
        "edge.listeners.l.allow_anonymous differs and is read at the start only: restart the node, or take it back",
    )
    assert piece.held == "old"


def test_a_setting_that_a_part_takes_up_is_told_once() -> None:
    """The next reload compares with what is in force now."""
    reload = reload_of(
        Piece("a", settings=("logs.level", "edge.listeners.*.backlog")), flags=("edge.listeners.l.backlog=7",)
    )
    assert reload.apply(reload.prepare()).lines[0] == "edge.listeners.l.backlog: 1024 -> 7"
    assert reload.apply(reload.prepare()).lines == ("a: new -> new",)


def test_a_dry_run_tells_and_changes_nothing() -> None:
    piece = Piece("a", settings=("logs.level",))
    reload = reload_of(piece, flags=("logs.level=debug",))
    for _ in range(2):
        outcome = reload.apply(reload.prepare(), dry_run=True)
        assert outcome.ok and outcome.lines == ("logs.level: info -> debug", "a: old -> new")
    assert piece.held == "old" and reload.outcomes == {"done": 0, "refused": 0}


def test_a_new_or_missing_listener_differs() -> None:
    more = config("edge.listeners.m.port=1", "edge.listeners.m.tls=false")
    changes = changed_settings(config(), more)
    assert changes["edge.listeners.m.port"] == ("none", "1")
    assert changed_settings(more, config())["edge.listeners.m.port"] == ("1", "none")


def test_what_is_told_is_bounded() -> None:
    reload = reload_of(Piece("a", "load", UserError("\n".join(["y" * 9000] * 9000))))
    lines = reload.apply(reload.prepare()).lines
    assert len(lines) == LINES_MAX + 1 and max(map(len, lines)) <= LINE_CHARS_MAX + 4


def test_nothing_prepared_is_refused() -> None:
    assert not reload_of().apply(Prepared()).ok
