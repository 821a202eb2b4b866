"""The table of checkers: printed name -> function that checks one guarantee."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratamq.history.checkers import (
    aborted_reads,
    duplicate,
    lost,
    order,
    retained_register,
    session_present,
    shared_group,
    single_owner,
    subscribe_barrier,
    unavailability,
    unsubscribe_barrier,
    will_once,
)
from stratamq.history.history import RunHistory
from stratamq.history.verdict import Report

Checker = Callable[[RunHistory], Report]

CHECKERS: Final[dict[str, Checker]] = {
    "lost": lost.check,
    "duplicate": duplicate.check,
    "order": order.check,
    "subscribe_barrier": subscribe_barrier.check,
    "unsubscribe_barrier": unsubscribe_barrier.check,
    "single_owner": single_owner.check,
    "session_present": session_present.check,
    "will_once": will_once.check,
    "retained_register": retained_register.check,
    "shared_group": shared_group.check,
    "aborted_reads": aborted_reads.check,
    "unavailability": unavailability.check,
}

__all__ = ["CHECKERS", "Checker"]
