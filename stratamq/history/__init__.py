"""Histories of a broker's clients: recorded over MQTT, and checked against the guarantees.

``stratamq record`` runs a workload against any broker and writes a history. ``stratamq check`` finds operations in it
that no broker with these guarantees can produce.
"""

from stratamq.history.check import check_history, judge
from stratamq.history.verdict import HistoryVerdict, Report, Violation

__all__ = ["HistoryVerdict", "Report", "Violation", "check_history", "judge"]
