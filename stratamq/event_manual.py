"""Generates ``docs/log-events.md`` from the table of events."""

import logging

from conf.events import EVENTS, OTHER, LogEvent, fields_of

__all__ = ["event_page"]

HEAD = """# Events in the log

<!-- made by `python -m stratamq.manual` from conf/events.py -->

Each line of a log has `ts`, `level`, `event`, `message`, `node` and `logger`, and the event's values as fields of
their own; as text the message alone, and values that it does not name. `left_out` is how many lines of the event were
left out as repeats before this one, `trace` a traceback: a fault of the program. Names of events stay from release to
release, sentences may change. What a library logs is `{other}`:
warnings and errors alone, whatever `logs.level` is. Of URLs a line has scheme, host, port and path.

`stratamq support bundle` and `/api/v1/logs` have the last 2 000 lines of each node.

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
