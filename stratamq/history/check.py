"""Runs all checkers on one history and returns one verdict."""

from __future__ import annotations

from pathlib import Path

from stratamq.history.checkers import CHECKERS
from stratamq.history.history import RunHistory, read_history
from stratamq.history.verdict import HistoryVerdict

__all__ = ["check_history", "judge"]


def check_history(path: Path | str) -> HistoryVerdict:
    """Read a history file and run all checkers on it.

    Raises:
        HistoryError: The file is not a history of this version.
        OSError: The file cannot be read.
    """
    return judge(read_history(Path(path)))


def judge(history: RunHistory) -> HistoryVerdict:
    """Run every checker on a history in memory."""
    reports = {name: checker(history) for name, checker in CHECKERS.items()}
    if history.truncated:
        reports["lost"].notes.append("the last line is cut off: the recorder was killed")
    return HistoryVerdict(history.header, len(history.records), reports, history.drained_ns is not None)
