"""The alarms as Prometheus rules and as a Markdown table."""

import json
from collections.abc import Iterator

from admin.alerts import ALARMS, Alert

__all__ = ["alarm_table", "alert_rules"]


def alert_rules() -> str:
    """Return ``docs/monitoring/alerts.yml``."""
    lines = [
        "# Generated from admin/alerts.py by `python -m stratamq.manual`; do not edit.",
        "groups:",
        "  - name: stratamq",
        "    rules:",
    ]
    for alarm in ALARMS:
        lines += _rule(alarm)
    return "\n".join(lines) + "\n"


def _rule(alarm: Alert) -> Iterator[str]:
    yield f"      - alert: {alarm.name}"
    yield f"        expr: {json.dumps(alarm.expression)}"
    if alarm.for_s:
        yield f"        for: {alarm.for_s:.0f}s"
    yield f"        labels: {{severity: {alarm.severity}}}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(alarm.sentence)}"
    yield f"          description: {json.dumps(alarm.do)}"


def alarm_table() -> str:
    """Return ``docs/monitoring/alarms.md``."""
    lines = [
        "# Alarms",
        "",
        "Generated from admin/alerts.py by `python -m stratamq.manual`; do not edit. `stratamq admin` evaluates them",
        "on the nodes' replies, displays and logs them; [alerts.yml](alerts.yml) contains the same rules for",
        "Prometheus.",
        "",
        "| alarm | severity | holds for | problem | remedy |",
        "|---|---|---|---|---|",
    ]
    for alarm in ALARMS:
        cells = alarm.severity, f"{alarm.for_s:.0f} s", alarm.sentence, alarm.do
        lines.append(f"| `{alarm.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
