"""Log lines on standard error: one JSON object each, or text at a terminal.

Defines the fields (``ts``, ``level``, ``event``, ``message``, ``node``, ``logger``, then the event's values) and
suppresses repeats of a flood, counted. Modules log through ``conf.events.say``. Library lines are the event
``log.other``: warnings and errors only, because at info they log each request. Payloads, passwords and keys are never
logged, and URLs are masked.
"""

import datetime
import json
import logging
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, TextIO

from conf.events import EVENTS, OTHER, fields_of
from conf.node_settings import LogSettings
from conf.urls import mask_urls

__all__ = ["KeptLine", "KeptLines", "RepeatFilter", "configure_logs", "kept_lines"]

BURST = 10  # records of one event within repeat_s before the rest is suppressed
KEPT_LINES = 2_000  # stored lines of this process, for queries
OWN_LOGGERS = (  # packages of StrataMQ; the level of all others is at least warning
    *("access", "admin", "bench", "conf", "edge", "gateways", "jobs"),
    *("membership", "mqtt", "router", "storage", "stratamq", "wire"),
)
EVENTS_MAX = 1024  # events tracked for repeats; the least recent is removed


def _message_of(record: logging.LogRecord) -> str:
    return mask_urls(record.getMessage())


def _event_of(record: logging.LogRecord) -> str:
    return str(getattr(record, "event", OTHER))


class RepeatFilter(logging.Filter):
    """Passes the first records of an event in each interval, and adds the number of suppressed ones to the next.

    A flood of one cause for many clients is one event; a library's event is its message template.
    """

    def __init__(self, repeat_s: float) -> None:
        super().__init__()
        self._repeat_s = repeat_s
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # -> start, records since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; sets ``record.left_out`` on the first one after a flood."""
        if self._repeat_s <= 0:
            return True
        event = _event_of(record)
        if EVENTS[event].is_list:
            return True
        key = (record.name, str(record.msg) if event == OTHER else event)
        began, count = self._seen.get(key, (record.created, 0))
        if record.created - began >= self._repeat_s:
            if count > BURST:
                record.left_out = count - BURST
            began, count = record.created, 0
        self._seen[key] = (began, count + 1)
        self._seen.move_to_end(key)
        if len(self._seen) > EVENTS_MAX:
            self._seen.popitem(last=False)
        return count < BURST


class _Formatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the caller's values, and the number of records suppressed before this one."""
        fields = dict(getattr(record, "fields", {}))
        if hasattr(record, "left_out"):
            fields["left_out"] = record.left_out
        return fields

    def trace(self, record: logging.LogRecord) -> str:
        """Return the traceback of an error that is a bug, or ""."""
        return mask_urls(self.formatException(record.exc_info)) if record.exc_info else ""


class _JsonLines(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        ts = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "ts": ts.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": _event_of(record),
            "message": _message_of(record),
            "node": self._node,
            "logger": record.name,
            **self.fields(record),
        }
        if trace := self.trace(record):
            line["trace"] = trace
        return _printable(json.dumps(line, default=str, ensure_ascii=False), _json_escape)


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        ts = datetime.datetime.fromtimestamp(record.created).astimezone()
        named = fields_of(EVENTS[_event_of(record)].sentence)  # values in the sentence are not repeated
        beside = {key: value for key, value in self.fields(record).items() if key not in named}
        facts = "".join(f" {key}={value}" for key, value in beside.items())
        text = _printable(f"{self._node}: {_message_of(record)}{facts}", _text_escape)
        trace = "".join(f"\n{_printable(line, _text_escape)}" for line in self.trace(record).splitlines())
        return f"{ts:%H:%M:%S}.{int(record.msecs):03d} {record.levelname.lower():7} {text}{trace}"


class KeptLine(NamedTuple):
    """A written line, for queries."""

    number: int
    at_ms: int
    level: str
    event: str
    logger: str
    message: str
    fields: dict[str, object]


class KeptLines:
    """The last lines of this process."""

    def __init__(self) -> None:
        self.lines: deque[KeptLine] = deque(maxlen=KEPT_LINES)
        self.number = 0  # of the newest

    def keep(self, record: logging.LogRecord) -> None:
        """Store a written record."""
        self.number += 1
        fields = dict(getattr(record, "fields", {}))
        at_ms = int(record.created * 1000)
        level, event = record.levelname.lower(), _event_of(record)
        line = KeptLine(self.number, at_ms, level, event, record.name, _message_of(record), fields)
        self.lines.append(line)


_kept = KeptLines()


def kept_lines() -> KeptLines:
    """Return the last lines of this process; empty before its log is configured."""
    return _kept


class _Writer(logging.StreamHandler[TextIO]):
    """Writes and stores the records that pass its filter."""

    def emit(self, record: logging.LogRecord) -> None:
        _kept.keep(record)
        super().emit(record)


def _printable(line: str, escape: Callable[[str], str]) -> str:
    """Return a line with escaped control characters, so untrusted names cannot end a line or control a terminal."""
    return line if line.isprintable() else "".join(char if char.isprintable() else escape(char) for char in line)


def _text_escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1] if char >= "\x80" else f"\\u{ord(char):04x}"


def configure_logs(settings: LogSettings, node: str, stream: TextIO | None = None) -> None:
    """Send this process's log to standard error; call once, before the first log call."""
    target = sys.stderr if stream is None else stream
    text = settings.format == "text" or (settings.format == "auto" and target.isatty())
    handler = _Writer(target)
    handler.setFormatter(_Text(node) if text else _JsonLines(node))
    handler.addFilter(RepeatFilter(settings.repeat_s))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    root.setLevel(max(level, logging.WARNING))
    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level)
