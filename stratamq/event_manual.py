"""Generates ``docs/log-events.md`` from the table of log events."""

import logging

from conf.events import EVENTS, OTHER, LogEvent, fields_of

__all__ = ["event_page"]

HEAD = """# Events in the log

<!-- made by `python -m stratamq.manual` from conf/events.py -->

Each log line has `ts`, `level`, `event`, `message`, `node` and `logger`, and the event's values as fields. The text
format has the message, and the values that it does not contain. `left_out` is the number of suppressed repeats of the
event before this line, `trace` the traceback of an internal error. Event names are stable between releases; messages
may change. Messages of libraries are logged as `{other}`: only warnings and errors, regardless of `logs.level`. URLs
are logged with scheme, host, port and path only.

`stratamq support bundle` and `/api/v1/logs` contain the last 2 000 lines of each node.

| event | level | message | values |
|---|---|---|---|
"""


def event_page() -> str:
    """Return the page."""
    rows = [_row(name, event) for name, event in sorted(EVENTS.items()) if name != OTHER]
    return HEAD.format(other=OTHER) + "".join(rows)


def _row(name: str, event: LogEvent) -> str:
    level = logging.getLevelName(event.level).lower()
    return f"| `{name}` | {level} | {_cell(event.sentence)} | {_values(event.sentence)} |\n"


def _cell(sentence: str) -> str:
    for name, whole in fields_of(sentence).items():
        sentence = sentence.replace(whole, f"<{name}>")
    return f"`` {sentence} ``" if "`" in sentence else f"`{sentence}`"


def _values(sentence: str) -> str:
    return " ".join(f"`{name}`" for name in fields_of(sentence)) or "-"
