"""Conversion of a node's timestamps to UTC."""

from wire.queries.timestamp_columns import SLACK_MS, TimestampColumns


def test_timestamp_columns_repeated_conversion_is_stable() -> None:
    """The two clocks are read one after the other, and each reading is rounded separately."""
    utc = [1_000_000]
    moments = TimestampColumns(lambda: utc[0])
    first = moments.utc_of(4_000.9, 5_000.2)
    for later_ms, jitter_ms in ((10, 1), (20, -1), (3_000, 7), (60_000, SLACK_MS)):
        utc[0] = 1_000_000 + later_ms + jitter_ms
        assert moments.utc_of(4_000.9, 5_000.2 + later_ms) == first == 999_000


def test_timestamp_columns_follow_a_clock_step() -> None:
    """Also backwards, and separately for each clock."""
    utc = [1_000_000]
    moments = TimestampColumns(lambda: utc[0])
    assert (moments.utc_of(4_000, 5_000), moments.utc_of(70, 80, 9)) == (999_000, 999_990)
    utc[0] += 3_600_000
    assert moments.utc_of(4_000, 5_000) == 4_599_000
    utc[0] -= 7_200_000
    assert moments.utc_of(4_000, 5_000) == -2_601_000
    assert moments.utc_of(70, 80, 9) == -2_600_010
