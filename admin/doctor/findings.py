"""The form of a check's result."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["FAIL", "OK", "SKIPPED", "WARN", "Check", "DoctorFinding", "judged", "worst"]

OK, SKIPPED, WARN, FAIL = "ok", "skipped", "warn", "fail"  # from good to bad
ORDER = (OK, SKIPPED, WARN, FAIL)
SUBJECTS_MAX = 20  # findings of one check: the rest is counted


class DoctorFinding(NamedTuple):
    """Finding of one check about one subject."""

    check: str
    state: str
    about: str  # a node, a file; "" where the check is about all
    found: str
    do: str = ""


Said = Iterable[tuple[str, str, str]]  # state, about, found: nothing means that all is well


class Check(NamedTuple):
    """One row of a table of checks. ``find`` yields what is not well; nothing where all is."""

    name: str
    good: str  # said where nothing is wrong
    do: str
    find: Callable[..., Said]


def judged(check: Check, *arguments: object) -> list[DoctorFinding]:
    """Return what a check finds; one ``ok`` where it finds nothing."""
    found = [
        DoctorFinding(check.name, state, about, text, "" if state in (OK, SKIPPED) else check.do)
        for state, about, text in check.find(*arguments)
    ]
    if len(found) > SUBJECTS_MAX:
        more = len(found) - SUBJECTS_MAX
        found.sort(key=lambda one: -ORDER.index(one.state))
        state = max((one.state for one in found[SUBJECTS_MAX:]), key=ORDER.index)
        found[SUBJECTS_MAX:] = [DoctorFinding(check.name, state, "", f"and {more} more like these", check.do)]
    return found or [DoctorFinding(check.name, OK, "", check.good)]


def worst(findings: Iterable[DoctorFinding]) -> str:
    """Return the worst state, ``ok`` of nothing."""
    return max((finding.state for finding in findings), key=ORDER.index, default=OK)
