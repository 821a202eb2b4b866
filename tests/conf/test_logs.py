"""Log lines: the fields, and suppression during a flood."""

import io
import json
import logging

import pytest

from conf.events import say
from conf.logs import BURST, OWN_LOGGERS, RepeatFilter, configure_logs
from conf.node_settings import LogSettings
from tests.packages import PACKAGES


def test_json_lines_have_the_documented_fields() -> None:
    """`ts, level, event, node`, then the caller's values."""
    stream = io.StringIO()
    configure_logs(LogSettings(), "edge-0", stream)
    say(logging.getLogger("edge.core"), "link.down", tier="edge", peer="e1", why=OSError("reset"), beside=7)
    logging.getLogger("edge.core").debug("not at this level")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record.pop("ts").endswith("Z")
    assert record == {
        "level": "info",
        "event": "link.down",
        "message": "link to edge e1 is down: reset",
        "node": "edge-0",
        "logger": "edge.core",
        "tier": "edge",
        "peer": "e1",
        "why": "reset",
        "beside": 7,
    }


def test_text_format_repeats_no_value() -> None:
    """Values outside the sentence follow it."""
    stream = io.StringIO()
    configure_logs(LogSettings(format="text"), "edge-0", stream)
    say(logging.getLogger("edge.core"), "link.down", tier="edge", peer="e1", why="reset", beside=7)
    assert stream.getvalue().endswith("edge-0: link to edge e1 is down: reset beside=7\n")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_library_logs_warnings_and_errors_only(level: str) -> None:
    """httpx logs each request with its URL at info, httpcore the data at debug."""
    stream = io.StringIO()
    configure_logs(LogSettings(level=level), "edge-0", stream)  # type: ignore[arg-type]
    for name in ("httpx", "httpcore.http11", "trio", "librdkafka", "anycorn.error"):
        logging.getLogger(name).debug("DEBUG of a library")
        logging.getLogger(name).info("HTTP Request: POST http://h/in?token=secret")
        logging.getLogger(name).warning("WARNING of a library")
    for name in PACKAGES:
        logging.getLogger(f"{name}.x").debug("ours")
        logging.getLogger(f"{name}.x").info("ours")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    ours = sum(line["message"] == "ours" for line in found)
    assert len(found) - ours == (0 if level == "error" else 5)
    assert ours == len(PACKAGES) * {"debug": 2, "info": 1}.get(level, 0)


def test_own_loggers_cover_every_package() -> None:
    assert set(OWN_LOGGERS) == {*PACKAGES, "bench"}


def test_library_lines_are_one_event() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(), "edge-0", stream)
    logging.getLogger("anycorn").warning("odd: %s", 7)
    record = json.loads(stream.getvalue())
    assert (record["event"], record["message"], record["level"]) == ("log.other", "odd: 7", "warning")


def test_list_lines_are_never_suppressed() -> None:
    """A reload's mistakes are not a flood."""
    stream = io.StringIO()
    configure_logs(LogSettings(repeat_s=60), "edge-0", stream)
    for number in range(3 * BURST):
        say(logging.getLogger("x"), "reload.mistake", line=number)
        say(logging.getLogger("x"), "link.cut", why=number)
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events.count("reload.mistake") == 3 * BURST and events.count("link.cut") == BURST


def test_text_format_keeps_traceback_of_bug() -> None:
    """An unexpected error keeps its traceback in both forms."""
    for form in ("text", "json"):
        stream = io.StringIO()
        configure_logs(LogSettings(format=form), "edge-0", stream)
        try:
            raise RuntimeError("oops")
        except RuntimeError:
            logging.getLogger("x").exception("unexpected")
        assert "edge-0" in stream.getvalue() and "RuntimeError: oops" in stream.getvalue()


def test_repeat_filter_suppresses_and_counts_flood() -> None:
    """One event, many clients: the first few, then a number."""
    repeats = RepeatFilter(10.0)

    def passes(created: float) -> logging.LogRecord | None:
        record = logging.LogRecord("edge", logging.WARNING, "", 0, "dropped %s", ("c",), None)
        record.created = created
        return record if repeats.filter(record) else None

    assert sum(passes(100.0 + step / 100) is not None for step in range(100)) == BURST
    after = passes(111.0)
    assert after is not None and after.left_out == 100 - BURST  # type: ignore[attr-defined]
    again = passes(112.0)
    assert again is not None and not hasattr(again, "left_out")


def test_say_names_the_class_of_an_error_without_a_text(caplog: pytest.LogCaptureFixture) -> None:
    """A reason is never empty: many errors of trio have no text."""
    with caplog.at_level(logging.DEBUG):
        say(logging.getLogger("x"), "link.refused", why=TimeoutError())
        say(logging.getLogger("x"), "link.refused", why=TimeoutError("too slow"))
    assert caplog.messages == ["refused a link: TimeoutError", "refused a link: too slow"]
