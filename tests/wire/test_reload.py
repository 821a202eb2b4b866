"""Atomic reload: all parts take effect or none, for a refusal by any part at any step."""

from typing import Any

import pytest

from conf.errors import UserError
from conf.settings import EdgeConfig, NodeConfig, load
from wire.node.reload import LINE_CHARS_MAX, LINES_MAX, NodeReload, Prepared, changed_settings


class Piece:
    """A part that records the state in effect, and fails at a given step."""

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
        """Return the new state."""
        assert config.node.id
        self._may_fail("load")
        return "new"

    def current(self) -> Any:
        """Return the state in effect."""
        self._may_fail("current")
        return self.held

    def difference(self, loaded: Any) -> list[str]:
        """Return one line."""
        self._may_fail("difference")
        return [f"{self.name}: {self.held} -> {loaded}"]

    def put(self, loaded: Any) -> None:
        """Set the state, then fail: the worst case."""
        self.held = loaded
        if loaded == "new":
            self._may_fail("put")


def config(*flags: str) -> EdgeConfig:
    """Return an edge's configuration."""
    found = load("edge", environment={}, flags=("edge.listeners.l.port=0", "edge.listeners.l.tls=false", *flags))
    assert isinstance(found, EdgeConfig)
    return found


def reload_of(*pieces: Piece, flags: tuple[str, ...] = ()) -> NodeReload:
    """Return a reload that reads the settings of these flags."""
    reload = NodeReload(config(), lambda: config(*flags))
    for piece in pieces:
        reload.add(piece)
    return reload


def test_reload_puts_all_parts_into_effect_and_reports_differences() -> None:
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
def test_reload_refused_by_one_part_keeps_the_old_state(where: str, index: int, error: Exception) -> None:
    """For every failing step: no part keeps new state, and the refusal is reported and counted."""
    pieces = [Piece(name, where if number == index else "", error) for number, name in enumerate("abc")]
    reload = reload_of(*pieces)
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and outcome.lines
    assert [piece.held for piece in pieces] == ["old"] * 3
    assert reload.outcomes == {"done": 0, "refused": 1}
    pieces[index].fails = ""  # repaired: the next reload applies all of it
    assert reload.apply(reload.prepare()).ok
    assert [piece.held for piece in pieces] == ["new"] * 3


def test_reload_reports_all_mistakes_at_once() -> None:
    reload = reload_of(Piece("a", "load"), Piece("b"), Piece("c", "load"), flags=("edge.receive_maximum=30",))
    lines = reload.apply(reload.prepare()).lines
    assert [line.split(" ")[0] for line in lines] == ["edge.receive_maximum", "a.pem:3:", "c.pem:3:"]


def test_reload_does_not_quote_unknown_errors() -> None:
    """The text of an unknown error may contain a part of a secret file."""
    reload = reload_of(Piece("a", "load", ValueError("hunter2")))
    assert reload.apply(reload.prepare()).lines == ("failed by ValueError",)


def test_reload_with_unreadable_settings_changes_nothing() -> None:
    piece = Piece("a")
    reload = NodeReload(config(), lambda: config("edge.nonsense=1"))
    reload.add(piece)
    outcome = reload.apply(reload.prepare())
    assert not outcome.ok and "edge.nonsense" in outcome.lines[0] and piece.held == "old"


def test_reload_of_an_unowned_setting_is_refused() -> None:
    piece = Piece("a", settings=("logs.level",))
    reload = reload_of(piece, flags=("logs.level=debug", "edge.listeners.l.allow_anonymous=true"))
    outcome = reload.apply(reload.prepare())
    assert outcome.lines == (
        "edge.listeners.l.allow_anonymous differs and is read at the start only: restart the node, or take it back",
    )
    assert piece.held == "old"


def test_reload_reports_a_changed_setting_once() -> None:
    """The next reload compares with the current state."""
    reload = reload_of(
        Piece("a", settings=("logs.level", "edge.listeners.*.backlog")), flags=("edge.listeners.l.backlog=7",)
    )
    assert reload.apply(reload.prepare()).lines[0] == "edge.listeners.l.backlog: 1024 -> 7"
    assert reload.apply(reload.prepare()).lines == ("a: new -> new",)


def test_reload_dry_run_reports_without_changes() -> None:
    piece = Piece("a", settings=("logs.level",))
    reload = reload_of(piece, flags=("logs.level=debug",))
    for _ in range(2):
        outcome = reload.apply(reload.prepare(), dry_run=True)
        assert outcome.ok and outcome.lines == ("logs.level: info -> debug", "a: old -> new")
    assert piece.held == "old" and reload.outcomes == {"done": 0, "refused": 0}


def test_changed_settings_includes_new_and_removed_listeners() -> None:
    more = config("edge.listeners.m.port=1", "edge.listeners.m.tls=false")
    changes = changed_settings(config(), more)
    assert changes["edge.listeners.m.port"] == ("none", "1")
    assert changed_settings(more, config())["edge.listeners.m.port"] == ("1", "none")


def test_reload_report_is_bounded() -> None:
    reload = reload_of(Piece("a", "load", UserError("\n".join(["y" * 9000] * 9000))))
    lines = reload.apply(reload.prepare()).lines
    assert len(lines) == LINES_MAX + 1 and max(map(len, lines)) <= LINE_CHARS_MAX + 4


def test_reload_apply_without_prepared_state_is_refused() -> None:
    assert not reload_of().apply(Prepared()).ok
