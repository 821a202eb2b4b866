"""Structure of a check's result."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["FAIL", "OK", "SKIPPED", "WARN", "Check", "DoctorFinding", "judged", "worst"]

OK, SKIPPED, WARN, FAIL = "ok", "skipped", "warn", "fail"  # best to worst
ORDER = (OK, SKIPPED, WARN, FAIL)
SUBJECTS_MAX = 20  # findings of one check; further ones are counted


class DoctorFinding(NamedTuple):
    """Finding of one check about one subject."""

    check: str
    state: str
    about: str  # a node, a file; "" if the check is about all
    found: str
    do: str = ""


Said = Iterable[tuple[str, str, str]]  # state, about, found; empty: no problem


class Check(NamedTuple):
    """One check. ``find`` yields the problems."""

    name: str
    good: str  # text if there is no problem
    do: str
    find: Callable[..., Said]


def judged(check: Check, *arguments: object) -> list[DoctorFinding]:
    """Return the findings of a check; one ``ok`` if it has none."""
    found = [
        DoctorFinding(check.name, state, about, text, "" if state in (OK, SKIPPED) else check.do)
        for state, about, text in check.find(*arguments)
    ]
    if len(found) > SUBJECTS_MAX:
        more = len(found) - SUBJECTS_MAX
        found.sort(key=lambda finding: -ORDER.index(finding.state))
        state = max((finding.state for finding in found[SUBJECTS_MAX:]), key=ORDER.index)
        found[SUBJECTS_MAX:] = [DoctorFinding(check.name, state, "", f"and {more} more like these", check.do)]
    return found or [DoctorFinding(check.name, OK, "", check.good)]


def worst(findings: Iterable[DoctorFinding]) -> str:
    """Return the worst state, ``ok`` if there is none."""
    return max((finding.state for finding in findings), key=ORDER.index, default=OK)
