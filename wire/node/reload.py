"""Atomic reload of settings and files on a running node, decided without touching a socket.

A reload reads all sources first, then computes the differences, and only then puts the new state into effect. One
mistake in any part, or one changed setting that no part owns, keeps the whole old state. Reading may take long and runs
in a thread of the shell (``wire/node/reloading.py``); ``apply`` runs in one loop iteration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

from conf.errors import UserError
from conf.secret_names import setting_text
from conf.settings import NodeConfig
from conf.urls import mask_urls

__all__ = ["NodeReload", "Prepared", "ReloadablePart", "Reloaded", "changed_settings"]

LINES_MAX = 200  # of an outcome; more are counted
LINE_CHARS_MAX = 300
SECTIONS = ("node", "membership", "metrics", "logs", "edge", "router", "storage", "admin")


class ReloadablePart(Protocol):
    """One unit that a reload replaces: certificates, a list, rules, bounds."""

    @property
    def settings(self) -> Sequence[str]:
        """Settings of this part; "*" matches the name of a listener."""

    def load(self, config: NodeConfig) -> Any:
        """Read and validate the part's new state; changes no state and may run in a thread.

        Raises:
            UserError: A file or a setting is invalid; the line names it.
        """

    def current(self) -> Any:
        """Return the state in effect."""

    def difference(self, loaded: Any) -> list[str]:
        """Return the changes that ``put`` would make, a line each."""

    def put(self, loaded: Any) -> None:
        """Put the result of ``load`` or ``current`` into effect."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The new state of all parts, or all mistakes."""

    config: NodeConfig | None = None
    loaded: tuple[tuple[ReloadablePart, Any], ...] = ()
    changes: tuple[str, ...] = ()  # of settings
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The outcome of a reload.

    Attributes:
        ok: The new state is in effect (of a dry run: it would be).
        lines: The difference; of a refusal every mistake.
    """

    ok: bool
    lines: tuple[str, ...] = field(default=())


class NodeReload:
    """The parts of one node that can change while it runs.

    Args:
        config: Settings at the start.
        read: Reads all sources of settings again; UserError describes a fault.
    """

    def __init__(self, config: NodeConfig, read: Callable[[], NodeConfig]) -> None:
        self._config = config
        self._read = read
        self._parts: list[ReloadablePart] = []
        self.outcomes = {"done": 0, "refused": 0}  # reloads, without dry runs

    def add(self, *parts: ReloadablePart) -> None:
        """Add parts to later reloads; they take effect in this order."""
        self._parts.extend(parts)

    def takes(self, name: str) -> bool:
        """Return whether a reload can change a setting; others are read only at the start."""
        return any(_matches(pattern, name) for part in self._parts for pattern in part.settings)

    def prepare(self) -> Prepared:
        """Read all sources; changes no state. May run in a thread, one at a time."""
        parts = tuple(self._parts)
        try:
            config = self._read()
        except Exception as error:  # a bug refuses too: the old state stays
            return Prepared(mistakes=_error_lines(error))
        mistakes: list[str] = []
        changes = changed_settings(self._config, config)
        taken = [pattern for part in parts for pattern in part.settings]
        for name in changes:
            if not any(_matches(pattern, name) for pattern in taken):
                mistakes.append(f"{name} differs and is read at the start only: restart the node, or take it back")
        loaded = []
        for part in parts:
            try:
                loaded.append((part, part.load(config)))
            except Exception as error:
                mistakes += _error_lines(error)
        lines = tuple(f"{name}: {old} -> {new}" for name, (old, new) in changes.items())
        return Prepared(config, tuple(loaded), lines, tuple(mistakes))

    def apply(self, prepared: Prepared, dry_run: bool = False) -> Reloaded:
        """Put the prepared state into effect, completely or not at all.

        Args:
            prepared: By the last ``prepare``.
            dry_run: Only report the differences.
        """
        outcome = self._apply(prepared, dry_run)
        if not dry_run:
            self.outcomes["done" if outcome.ok else "refused"] += 1
        return outcome

    def _apply(self, prepared: Prepared, dry_run: bool) -> Reloaded:
        if prepared.mistakes or prepared.config is None:
            return Reloaded(False, _bounded(prepared.mistakes or ("nothing was read",)))
        before: list[tuple[ReloadablePart, Any]] = []
        try:
            lines = [*prepared.changes]
            for part, loaded in prepared.loaded:
                lines += part.difference(loaded)
            if dry_run:
                return Reloaded(True, _bounded(lines))
            before = [(part, part.current()) for part, _ in prepared.loaded]
            for part, loaded in prepared.loaded:
                part.put(loaded)
        except Exception as error:
            for part, old in reversed(before):
                part.put(old)  # an error here ends the node: the effective state would be unknown
            return Reloaded(False, _bounded(_error_lines(error)))
        self._config = prepared.config
        return Reloaded(True, _bounded(lines))


def changed_settings(old: NodeConfig, new: NodeConfig) -> dict[str, tuple[str, str]]:
    """Return the changed settings: dotted name -> (old, new); a listener's settings are under the listener's name.

    Secrets are masked, so old and new may look alike, for example URLs that differ in their queries.
    """
    before, after = _flat(old), _flat(new)
    names = sorted(before.keys() | after.keys())
    return {
        name: (_shown(name, before.get(name)), _shown(name, after.get(name)))
        for name in names
        if before.get(name) != after.get(name)
    }


def _shown(name: str, value: object) -> str:
    return "none" if value is None else setting_text(name, value)


def _flat(config: NodeConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for section in SECTIONS:
        _flatten(section, getattr(config, section, None), values)
    return values


def _flatten(name: str, value: Any, values: dict[str, Any]) -> None:
    if isinstance(value, BaseModel):
        value = {key: getattr(value, key) for key in type(value).model_fields}
    if isinstance(value, tuple | list) and any(isinstance(item, BaseModel) for item in value):
        value = {str(getattr(item, "name", number)): item for number, item in enumerate(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(f"{name}.{key}", item, values)
        return
    values[name] = value


def _matches(pattern: str, name: str) -> bool:
    wanted, given = pattern.split("."), name.split(".")
    return len(wanted) == len(given) and all(part in ("*", word) for part, word in zip(wanted, given, strict=True))


def _error_lines(error: Exception) -> tuple[str, ...]:
    text = mask_urls(str(error))
    if isinstance(error, UserError):
        return tuple(text.splitlines()) or ("refused",)
    return (f"{type(error).__name__}: {text}" if isinstance(error, OSError) else f"failed by {type(error).__name__}",)


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    shown = [line if len(line) <= LINE_CHARS_MAX else f"{line[:LINE_CHARS_MAX]} ..." for line in lines[:LINES_MAX]]
    more = len(lines) - LINES_MAX
    return (*shown, f"and {more} lines more") if more > 0 else tuple(shown)
