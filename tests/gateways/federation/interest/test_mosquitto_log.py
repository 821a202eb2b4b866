"""Tests interest from Mosquitto's log lines, and when each subscription ends, for any text of a line."""

import pytest

from gateways.federation.events import InterestChanged
from gateways.federation.interest.interest import Interest
from gateways.federation.interest.mosquitto import NOTICE, SUBSCRIBE, UNSUBSCRIBE, MosquittoLog

DAY_S = 86_400.0


class Log:
    """An adapter, and log lines with a time in Mosquitto's own format."""

    def __init__(self, time: str = "1795623143: ") -> None:
        self.interest = Interest(["agent"], interest_s=7 * DAY_S)
        self.adapter = MosquittoLog(self.interest, "agent")
        self.time, self.now = time, 1_000.0
        self.write(SUBSCRIBE, f"agent 2 {SUBSCRIBE}")

    def write(self, topic: str, text: str) -> None:
        self.adapter.received(self.now, topic, f"{self.time}{text}".encode())

    def change(self) -> tuple[dict[str, int], tuple[str, ...]]:
        change = self.interest.take_change() or InterestChanged({})
        return dict(change.added), change.removed


TIMES = ["1795623143: ", "", "2026-11-25T16:12:22: ", "Wed Nov 25 16:12:22 2026: ", "16: 12: 22: ", "[16:12]: "]


@pytest.mark.parametrize("time", TIMES)
def test_a_subscription_and_its_end(time: str) -> None:
    """The result is the same in every time format."""
    log = Log(time)
    log.write(NOTICE, "New client connected from 127.0.0.1:56634 as a client x (p2, c1, k60).")
    log.write(SUBSCRIBE, "a client x 1 a/b")
    log.write(SUBSCRIBE, "a client x 2 c/+/#")
    assert log.change() == ({"a/b": 1, "c/+/#": 2}, ())
    log.write(UNSUBSCRIBE, "a client x a/b")
    assert log.change() == ({}, ("a/b",))
    log.write(NOTICE, "Client a client x disconnected.")
    assert log.change() == ({}, ("c/+/#",))


@pytest.mark.parametrize(
    "line",
    [
        "Client x y disconnected.",
        "Client x y closed its connection.",
        "Socket error on client x y, disconnecting.",
        "Client x y has exceeded timeout, disconnecting.",
        "Client x y disconnected due to protocol error.",
        "Client x y disconnected, not authorised.",
        "Client x y disconnected: connection lost: reset",
        "Client x y [127.0.0.1:5678] disconnected: keep alive",
    ],
)
def test_phrases_of_an_end(line: str) -> None:
    """Mosquitto 1.6, 2.0 and 2.1 phrase it differently."""
    log = Log()
    log.write(NOTICE, "New client connected from 127.0.0.1:5678 as x y (p2, c1, k60, u'me').")
    log.write(SUBSCRIBE, "x y 0 f")
    log.change()
    log.write(NOTICE, line)
    assert log.change() == ({}, ("f",))


def test_a_kept_session_counts_until_it_expires() -> None:
    """A client without a clean start still counts, also with MQTT 5, whose expiry is not logged."""
    log = Log()
    log.write(NOTICE, "New client connected from h as kept (p2, c0, k60).")
    log.write(SUBSCRIBE, "kept 1 f")
    log.write(NOTICE, "New client connected from h as five (p5, c1, k60).")
    log.write(SUBSCRIBE, "five 1 g")
    log.write(NOTICE, "Client kept disconnected.")
    log.write(NOTICE, "Client five disconnected.")
    assert log.change() == ({"f": 1, "g": 1}, ())
    log.write(NOTICE, "Expiring client five due to timeout.")
    assert log.change() == ({}, ("g",))
    log.interest.expire(log.now + 6 * DAY_S)
    assert log.change() == ({}, ())
    log.interest.expire(log.now + 8 * DAY_S)
    assert log.change() == ({}, ("f",))


def test_a_clean_start_ends_subscriptions() -> None:
    """A client that starts clean has to subscribe again."""
    log = Log()
    log.write(SUBSCRIBE, "c 1 f")
    log.change()
    log.write(NOTICE, "New client connected from h as c (p2, c1, k60).")
    assert log.change() == ({}, ("f",))


def test_ambiguity_counts_as_interest() -> None:
    """A line that can be parsed in two ways is two subscriptions; an ambiguous end is ignored."""
    log = Log()
    log.write(SUBSCRIBE, "x 1 y 0 f")
    assert log.change() == ({"y 0 f": 1, "f": 0}, ())
    log.write(UNSUBSCRIBE, "x 1 y f")
    assert log.change() == ({}, ("f",))
    log.write(SUBSCRIBE, "a 1 b c")
    log.write(SUBSCRIBE, "a b 1 c")
    log.change()
    log.write(UNSUBSCRIBE, "a b c")
    assert log.change() == ({}, ())
    assert log.interest.counts["doubtful_lines"] == 1


def test_a_cut_line() -> None:
    """The filter is used up to its last complete level."""
    log = Log()
    head = f"c 1 {'long/' * 150}"
    log.write(SUBSCRIBE, (head + "x" * 1_000)[: 999 - len(log.time)])
    assert log.change() == ({f"{'long/' * 150}#": 1}, ())
    log.write(SUBSCRIBE, ("c 1 " + "x" * 1_000)[: 999 - len(log.time)])
    assert log.change() == ({"#": 1}, ())
    log.write(UNSUBSCRIBE, ("c " + "x" * 1_000)[: 999 - len(log.time)])
    log.write(SUBSCRIBE, "i" * (999 - len(log.time)))
    assert log.change() == ({}, ())
    assert log.interest.counts["unreadable"] == 1


def test_excluded_topics() -> None:
    """Topics that begin with $, the agent's own, markers and invalid filters; a shared subscription counts as its
    filter.
    """
    log = Log()
    for topic_filter in ("$SYS/#", "$share/g", "$share/g/$SYS/x", "a/#/b", "a+", "stratamq-federate/a/x"):
        log.write(SUBSCRIBE, f"c 1 {topic_filter}")
    log.write(SUBSCRIBE, "agent 2 own/#")
    assert log.change() == ({}, ())
    log.write(SUBSCRIBE, "c 1 $share/g/s/+")
    assert log.change() == ({"s/+": 1}, ())


def test_another_agent_at_the_same_broker_wants_nothing() -> None:
    """Its captures serve clients elsewhere. Two such agents used to keep each other's filters."""
    log = Log()
    log.write(SUBSCRIBE, "other 2 early/#")
    assert log.change() == ({"early/#": 2}, ())
    for topic_filter in ("stratamq-federate/b/marker", "plant/#"):
        log.write(SUBSCRIBE, f"other 2 {topic_filter}")
    assert log.change() == ({}, ("early/#",))
    assert log.interest.counts["another_agent"] == 2
    log.write(SUBSCRIBE, "victim 2 own/#")
    log.write(SUBSCRIBE, "victim 0 stratamq-federate/q 1 b/marker")  # a client with that name, not the victim
    assert "own/#" in log.change()[0] and log.interest.has("victim", "own/#")


def test_two_clients_of_one_filter() -> None:
    """It ends with the last of them; the highest QoS is used."""
    log = Log()
    log.write(SUBSCRIBE, "a 0 f")
    log.write(SUBSCRIBE, "b 2 f")
    assert log.change() == ({"f": 2}, ())
    log.write(UNSUBSCRIBE, "b f")
    assert log.change() == ({"f": 0}, ())
    log.write(UNSUBSCRIBE, "a f")
    assert log.change() == ({}, ("f",))


def test_rows_and_a_gap() -> None:
    """A later process has the same state; after a gap no filter is removed until a client was missing for long."""
    log = Log()
    log.write(NOTICE, "New client connected from h as c (p2, c1, k60).")
    log.write(SUBSCRIBE, "c 1 f")
    rows = {write.key: write.value for write in log.interest.take_rows()}  # type: ignore[union-attr]
    later = Log()
    later.interest.restore(rows.items())
    assert later.change() == ({"f": 1}, ())
    later.adapter.disconnected(later.now)
    assert not later.adapter.reconnected(later.now + 19, True)
    later.adapter.disconnected(later.now)
    assert later.adapter.reconnected(later.now + 21, True)
    later.adapter.disconnected(later.now)
    assert later.adapter.reconnected(later.now + 1, False)
    assert later.change() == ({}, ())
    assert later.interest.counts["interest_gap"] == 2
    later.interest.expire(later.now + 8 * DAY_S)
    assert later.change() == ({}, ("f",))


def test_too_many_filters() -> None:
    """Excess filters are counted; existing ones stay."""
    interest = Interest([], filters_max=3)
    adapter = MosquittoLog(interest, "agent")
    for number in range(5):
        adapter.received(0.0, SUBSCRIBE, f"1: c 0 f{number}".encode())
    assert len(interest) == 3
    assert interest.counts["too_many_filters"] == 2


def test_no_line_raises() -> None:
    """Bytes that are not text, and empty lines."""
    log = Log()
    for topic in (SUBSCRIBE, UNSUBSCRIBE, NOTICE, "$SYS/broker/log/E"):
        for payload in (b"", b"\xff\xfe", b"1: ", b"1: \x00 1 \x00", b": " * 400, b" 1 " * 333):
            log.adapter.received(0.0, topic, payload)
