"""Revocation lists while a node runs: reloaded when a file changes, kept when the new content is invalid.

A part of a reload, and checked between reloads. ``look`` runs in a thread, ``take`` in one loop iteration.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from conf.errors import UserError
from conf.events import say
from conf.settings import NodeConfig
from wire.node.reload_parts import changed_files, file_marks

__all__ = ["FileCheck", "RevocationFiles", "RevocationLists"]

logger = logging.getLogger(__name__)

Stamps = dict[str, tuple[int, ...]]  # of a file; another content has another stamp


class RevocationLists(Protocol):
    """The lists that are in effect."""

    @property
    def revoked(self) -> int:
        """Number of revoked certificates in the lists."""

    @property
    def next_update_utc(self) -> float:
        """Time at which the first of them goes stale, in seconds since the epoch."""


class RevocationFileSource(Protocol):
    """Settings with file names."""

    @property
    def crl_files(self) -> tuple[Path, ...]:
        """The files; empty: no lists are configured."""


L = TypeVar("L", bound=RevocationLists)
S = TypeVar("S", bound=RevocationFileSource)


@dataclass(frozen=True, slots=True)
class RevocationFileRead(Generic[S, L]):
    """Result of reading all files."""

    source: S
    lists: L | None
    marks: dict[str, str]
    stamps: Stamps


@dataclass(frozen=True, slots=True)
class FileCheck(Generic[S, L]):
    """Result of a check: new lists, or a mistake, or neither if no file changed."""

    read: RevocationFileRead[S, L] | None = None
    mistake: str = ""


class RevocationFiles(Generic[S, L]):
    """The lists of one table of settings.

    Args:
        what: Their name in the log.
        settings: Keys that a reload may change.
        source: Settings at the start.
        source_of: Returns them from new settings of the node.
        read: Reads and checks the configured files; UserError describes a fault.
        put: Puts lists into effect.
        utc: Returns seconds since the epoch.
    Raises:
        UserError: A file is unusable at the start.
    """

    def __init__(
        self,
        what: str,
        settings: Sequence[str],
        source: S,
        source_of: Callable[[Any], S],
        read: Callable[[S], L | None],
        put: Callable[[L | None], None],
        utc: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._what = what
        self._source_of = source_of
        self._read = read
        self._put = put
        self._utc = utc
        self._mistake = ""  # of the last check; "" if the files' content is in effect
        self._logged = ""
        self.looks = {"taken": 0, "failed": 0}
        self._held = self._load(source)
        self._put(self._held.lists)

    @property
    def lists(self) -> L | None:
        """Lists in effect; None: none are configured."""
        return self._held.lists

    @property
    def seconds_left(self) -> float:
        """Seconds until the first list is stale; 0 without lists, negative when it is."""
        lists = self._held.lists
        return 0.0 if lists is None else lists.next_update_utc - self._utc()

    def load(self, config: NodeConfig) -> RevocationFileRead[S, L]:
        """Read the lists for a reload.

        Raises:
            UserError: A file is unusable.
        """
        return self._load(self._source_of(config))

    def _load(self, source: S) -> RevocationFileRead[S, L]:
        stamps = _stamps(source)  # before the content: a change in between is found by the next check
        marks = file_marks(source.crl_files)
        return RevocationFileRead(source, self._read(source), marks, stamps)

    def current(self) -> RevocationFileRead[S, L]:
        """Return the lists in effect."""
        return self._held

    def difference(self, loaded: RevocationFileRead[S, L]) -> list[str]:
        """Return the files whose content changed."""
        return changed_files(self._held.marks, loaded.marks)

    def put(self, loaded: RevocationFileRead[S, L]) -> None:
        """Put lists into effect."""
        self._held = loaded
        self._mistake = ""
        self._put(loaded.lists)

    # -- between reloads

    def look(self) -> FileCheck[S, L]:
        """Reload the files if one changed or was invalid before; changes no state, may run in a thread."""
        held = self._held
        if not held.source.crl_files or (not self._mistake and _stamps(held.source) == held.stamps):
            return FileCheck()
        try:
            return FileCheck(self._load(held.source))
        except UserError as error:
            return FileCheck(mistake=str(error))
        except Exception as error:  # no descriptor, no memory, a bug: the former lists stay
            return FileCheck(mistake=f"not read: {error or type(error).__name__}")

    def take(self, checked: FileCheck[S, L]) -> None:
        """Put checked lists into effect, or keep the former lists and log the fault once."""
        if checked.read is not None and checked.read.source is self._held.source:  # a reload may have come between
            self.looks["taken"] += 1
            lines = self.difference(checked.read)
            self.put(checked.read)
            for line in lines:
                say(logger, "revocation.taken", of=self._what, line=line)
        elif checked.mistake:
            self.looks["failed"] += 1
            self._mistake = checked.mistake
        self._log_change(self.problem())

    def problem(self) -> str:
        """Return the fault of the lists, "" if they match the files and are not stale."""
        if self._mistake:
            return f"{self._mistake}; the former list stays in effect"
        lists = self._held.lists
        if lists is not None and not self._utc() < lists.next_update_utc:
            return "a list is stale: established connections stay, all new ones are refused until a newer list exists"
        return ""

    def _log_change(self, problem: str) -> None:
        if problem and problem != self._logged:
            say(logger, "revocation.failed", of=self._what, problem=problem)
        elif self._logged and not problem:
            say(logger, "revocation.in_order", of=self._what)
        self._logged = problem


def _stamps(source: RevocationFileSource) -> Stamps:
    stamps: Stamps = {}
    for path in source.crl_files:
        try:
            found = path.stat()
        except OSError:
            stamps[str(path)] = ()
        else:
            stamps[str(path)] = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
    return stamps
