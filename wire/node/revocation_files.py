"""Revocation lists while a node runs: read again when a file changed, kept when the new content is wrong.

A part of a reload, and watched between reloads. ``look`` runs in a thread, ``take`` in one turn of the loop.
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
    """The lists of one moment."""

    @property
    def revoked(self) -> int:
        """Number of certificates that the lists name."""

    @property
    def next_update_utc(self) -> float:
        """The moment at which the first of them goes stale, in seconds since the epoch."""


class RevocationFileSource(Protocol):
    """Settings that name files."""

    @property
    def crl_files(self) -> tuple[Path, ...]:
        """The files; none: there are no lists."""


L = TypeVar("L", bound=RevocationLists)
S = TypeVar("S", bound=RevocationFileSource)


@dataclass(frozen=True, slots=True)
class RevocationFileRead(Generic[S, L]):
    """All that one reading found."""

    source: S
    lists: L | None
    marks: dict[str, str]
    stamps: Stamps


@dataclass(frozen=True, slots=True)
class FileCheck(Generic[S, L]):
    """The outcome of a look: what was read, or a mistake, or neither because no file changed."""

    read: RevocationFileRead[S, L] | None = None
    mistake: str = ""


class RevocationFiles(Generic[S, L]):
    """The lists that one table of settings names.

    Args:
        what: Names them in the log.
        settings: Keys that a reload may change.
        source: Settings at the start.
        source_of: Returns them from other settings of the node.
        read: Reads and checks the files that settings name; UserError says what is wrong.
        put: Judges by lists from now on.
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
        self._mistake = ""  # of the last look; "" if what the files hold is in force
        self._said = ""
        self.looks = {"taken": 0, "failed": 0}
        self._held = self._load(source)
        self._put(self._held.lists)

    @property
    def lists(self) -> L | None:
        """Lists in force; None: no setting names any."""
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
        stamps = _stamps(source)  # before the content: what changes meanwhile is read at the next look
        marks = file_marks(source.crl_files)
        return RevocationFileRead(source, self._read(source), marks, stamps)

    def current(self) -> RevocationFileRead[S, L]:
        """Return what is in force."""
        return self._held

    def difference(self, loaded: RevocationFileRead[S, L]) -> list[str]:
        """Return the files whose content is another."""
        return changed_files(self._held.marks, loaded.marks)

    def put(self, loaded: RevocationFileRead[S, L]) -> None:
        """Judge by these lists from now on."""
        self._held = loaded
        self._mistake = ""
        self._put(loaded.lists)

    # -- between reloads

    def look(self) -> FileCheck[S, L]:
        """Read the files again if one changed, or was wrong at the last look; changes nothing, may run in a thread."""
        held = self._held
        if not held.source.crl_files or (not self._mistake and _stamps(held.source) == held.stamps):
            return FileCheck()
        try:
            return FileCheck(self._load(held.source))
        except UserError as error:
            return FileCheck(mistake=str(error))
        except Exception as error:  # no descriptor, no memory, a bug: the former lists stay
            return FileCheck(mistake=f"not read: {error or type(error).__name__}")

    def take(self, looked: FileCheck[S, L]) -> None:
        """Put what a look found in force, or keep the former lists and say why, once."""
        if looked.read is not None and looked.read.source is self._held.source:  # a reload may have come between
            self.looks["taken"] += 1
            lines = self.difference(looked.read)
            self.put(looked.read)
            for line in lines:
                say(logger, "revocation.taken", of=self._what, line=line)
        elif looked.mistake:
            self.looks["failed"] += 1
            self._mistake = looked.mistake
        self._say(self.problem())

    def problem(self) -> str:
        """Return what is wrong with the lists now, "" if they are as the files say and current."""
        if self._mistake:
            return f"{self._mistake}; the former list stays in force"
        lists = self._held.lists
        if lists is not None and not self._utc() < lists.next_update_utc:
            return "a list is stale: what stands stays, everybody else is refused until the newer list is there"
        return ""

    def _say(self, problem: str) -> None:
        if problem and problem != self._said:
            say(logger, "revocation.failed", of=self._what, problem=problem)
        elif self._said and not problem:
            say(logger, "revocation.in_order", of=self._what)
        self._said = problem


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
