"""Queries about the process around a core: the last log lines, and the metrics of its page."""

import io
import logging
import mmap

from conf.logs import configure_logs, kept_lines
from conf.metrics import Metrics
from conf.node_settings import LogSettings
from wire.messages.node_rows import StatsRow
from wire.node.host_figures import resident_bytes
from wire.node.node_queries import stats_columns

SIZE = 64 * 1024 * 1024


def test_log_query_keeps_written_lines_and_drops_filtered_ones() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    written = io.StringIO()
    try:
        configure_logs(LogSettings(repeat_s=60), "n", written)
        first = kept_lines().number
        for number in range(30):
            logging.getLogger("x").warning("flood of %d", number, extra={"fields": {"n": number}})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    kept = [line for line in kept_lines().lines if line.number > first]
    assert len(kept) == len(written.getvalue().splitlines()) == 10
    assert (kept[3].message, kept[3].fields, kept[3].level) == ("flood of 3", {"n": 3}, "warning")


def test_stats_query_uses_metric_names_of_the_page() -> None:
    metrics = Metrics("edge", "e1", "1")
    metrics.counter("things_total", "Things.", lambda: {("a", "b"): 2.0}, ("one", "two"))
    metrics.gauge("now", "Now.", lambda: 3.0)
    assert metrics.values("counter")['stratamq_things_total{one="a",two="b"}'] == 2.0
    assert metrics.values("gauge")["stratamq_now"] == 3.0
    assert [metrics.values_of(name) for name in ("things_total", "now", "none")] == [[2.0], [3.0], []]


def test_each_stats_column_has_a_source() -> None:
    """The age of the oldest queued message had none, so its alert and the overview never had a value."""
    assert set(StatsRow.__struct_fields__) == set(stats_columns())


def test_resident_bytes_is_the_current_value() -> None:
    """It was the peak, inherited from the parent process: the value never fell."""
    before = resident_bytes()
    assert before is not None
    held = mmap.mmap(-1, SIZE)
    held.write(b"x" * SIZE)
    with_it = resident_bytes()
    held.close()
    after = resident_bytes()
    assert with_it is not None and after is not None
    assert with_it - before > SIZE / 2 and with_it - after > SIZE / 2
