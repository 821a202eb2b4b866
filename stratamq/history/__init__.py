"""Histories of a broker as its clients saw it: recorded over plain MQTT, judged against the promises.

``stratamq record`` runs a workload against any broker and writes a history; ``stratamq check`` looks in one for
operations that no broker keeping the promises could have answered that way.
"""

from stratamq.history.check import check_history, judge
from stratamq.history.verdict import HistoryVerdict, Report, Violation

__all__ = ["HistoryVerdict", "Report", "Violation", "check_history", "judge"]
