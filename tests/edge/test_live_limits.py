"""Live limits of ``[edge]``, applied by a reload."""

from typing import Any

import pytest

from conf.settings import EdgeConfig, EdgeSettings, load
from edge.limits_of_settings import edge_limits, hot_limits
from edge.live_limits import LIVE, LiveLimits
from edge.node.limits import ListenerPolicy
from edge.rights.sources import Sources
from mqtt.packets import Connect, Disconnect, Suback
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge
from tests.edge.rights.ruled import Vouched, book, come, principal, roles
from tests.edge.test_conduct import CLOSED, STRANGE
from tests.edge.test_conduct import come as come_from
from wire.messages.wills import FireWill, SessionWill, WillFired
from wire.node.reload import NodeReload, Reloaded

OTHERS = {  # settings read at the start only: a different value
    "announce_maximum_packet_size": False,
    "retain_available": False,
    "maximum_qos": 1,
    "response_information": "answers/",
    "overlapping": "merged",
    "shared_subscriptions": "sticky",
    "routes_max": 100,
    "pacing_us_max": 0,
    "sys_interval_s": 3,
    "publisher_properties": "a/#",
    "events": True,
    "events_rate_max": 5.0,
    "fence_close_s": 3.0,
    "drain_rate": 7,
    "recheck_retained_source": False,
    "hashes_waiting_max": 9,
}


def config(**edge: Any) -> EdgeConfig:
    """Return an edge's configuration."""
    found = load("edge", environment={}, flags=tuple(f"edge.{name}={value}" for name, value in edge.items()))
    assert isinstance(found, EdgeConfig)
    return found


class Running:
    """An edge with settings that can be reloaded."""

    def __init__(self, sources: Sources | None = None, **edge: Any) -> None:
        self.config = before = config(**edge)
        rules = book(sources) if sources is not None else None
        limits, hot = edge_limits(before.edge), hot_limits(before.edge)
        self.edge = Edge(limits, steps=[Vouched()], rules=rules)
        self.core = self.edge.core
        self.core.hot.bound_by(hot)
        self.kicks = 0
        self._reload = NodeReload(before, lambda: self.config)
        core = self.core
        parts = core.conduct, core.connecting, core.retained, core.subscribing
        part = LiveLimits(before.edge, core.node, core.hot, core.memory, core.rights, parts, self._kick)
        self._reload.add(part)

    def _kick(self) -> None:
        self.kicks += 1

    def reload(self, **edge: Any) -> Reloaded:
        """Reload other settings, and run the edge until it is idle."""
        self.config = config(**edge)
        outcome = self._reload.apply(self._reload.prepare())
        self.edge.turn(0.1)
        return outcome


def code(edge: Edge, address: str, client_id: str = "c", policy: ListenerPolicy | None = None, **more: Any) -> int:
    """Return the response to a CONNECT; claims of a storm wait some milliseconds for their batch."""
    session = come_from(edge, address, policy)
    session.connect(client_id, **more)
    edge.turn(0.02)
    (connack,) = session.read()
    return int(connack.reason_code)


def another(name: str) -> Any:
    """Return a value of a setting other than its default."""
    default = getattr(EdgeSettings(), name)
    return (
        default // 2
        if isinstance(default, int) and default > 1
        else 7
        if isinstance(default, int)
        else default / 2 or 7.0
    )


@pytest.mark.parametrize("name", LIVE)
def test_each_limit_is_applied_by_a_reload(name: str) -> None:
    """The difference is reported; a second reload restores it."""
    running, value = Running(), another(name)
    outcome = running.reload(**{name: value})
    assert outcome.ok and outcome.lines == (f"edge.{name}: {getattr(EdgeSettings(), name)} -> {value}",)
    after = running.config.edge
    assert getattr(after, name) == value
    assert running.core.limits == edge_limits(after) and running.core.hot.limits == hot_limits(after)
    assert (edge_limits(after), hot_limits(after)) != (edge_limits(EdgeSettings()), hot_limits(EdgeSettings()))
    assert running.kicks == 1
    assert running.reload().ok and running.core.limits == edge_limits(EdgeSettings()) and running.kicks == 2


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_require_a_restart(name: str) -> None:
    """All or nothing: a limit in the same reload is not applied either."""
    running = Running()
    outcome = running.reload(**{name: OTHERS[name], "connections_max": 3})
    assert not outcome.ok and any(f"edge.{name} differs" in line and "restart" in line for line in outcome.lines)
    assert running.core.limits == edge_limits(EdgeSettings()) and not running.kicks


def test_each_setting_is_live_or_not() -> None:
    """A new one must be classified; those of files and of listeners have their own parts."""
    files = {"listeners", "ledger", "scram_users_file", "scram_secret_file"}
    assert set(EdgeSettings.model_fields) == {*LIVE, *OTHERS, *files}


def test_connection_and_connect_limits() -> None:
    running = Running()
    edge = running.edge
    assert [code(edge, STRANGE, f"a{number}") for number in range(3)] == [0, 0, 0]
    running.reload(connections_max=3)
    assert code(edge, STRANGE, "b") == 0x89 and edge.core.counts["refused_connections"] == 1
    running.reload(connect_rate_max=2.0)
    edge.turn(10.0)
    assert [code(edge, STRANGE, f"c{number}") for number in range(2)] == [0, 0]
    waiting = edge.accept()
    waiting.connect("waits")
    assert not waiting.read()
    running.reload()
    assert [code(edge, STRANGE, f"d{number}") for number in range(4)] == [0, 0, 0, 0]


def test_failed_login_limit_keeps_current_refusals() -> None:
    """Unless the limit was removed."""
    running = Running()
    edge = running.edge

    def fail() -> int:
        return code(edge, STRANGE, username="u", password=b"p", policy=CLOSED)

    assert [fail() for _ in range(4)] == [0x86] * 4
    running.reload(failed_logins_max=5)
    assert [fail() for _ in range(3)] == [0x86, 0x9F, 0x9F]
    running.reload(failed_logins_max=50)
    assert fail() == 0x9F
    running.reload(failed_logins_max=0)
    assert fail() == 0x86
    running.reload(failed_logins_max=2)
    assert [fail() for _ in range(3)] == [0x86, 0x86, 0x9F]


def test_takeover_and_flapping_limits() -> None:
    running = Running()
    edge = running.edge

    def come_and_go() -> int:
        session = come_from(edge, STRANGE)
        session.connect("mine")
        edge.turn(0.02)
        (connack,) = session.read()
        session.drop()
        return int(connack.reason_code)

    running.reload(flapping_ends_max=3)
    assert [come_and_go() for _ in range(4)] == [0, 0, 0, 0x9F]
    running.reload(takeovers_max=1, flapping_ends_max=0)
    edge.core.conduct.taken_over("mine")
    assert come_and_go() == 0x9F
    running.reload(flapping_ends_max=0)
    assert [come_and_go() for _ in range(9)] == [0] * 9


def test_will_rate_limit() -> None:
    running = Running()
    edge = running.edge
    edge.held |= {WillFired}
    running.reload(will_rate_max=1.0)
    for number in range(1, 5):
        edge.storage(FireWill(number, 1, 1, number, SessionWill("w", b"")))
    edge.turn()
    assert len(edge.take(WillFired)) == 2 and edge.core.counts["wills_deferred"] == 2


def test_session_rate_limit() -> None:
    running = Running(session_rate=0.0)
    edge = running.edge
    stored = {PropertyId.SESSION_EXPIRY_INTERVAL: 60}

    def made(count: int) -> int:
        before = len([one for one in edge.seen if getattr(one, "may_create", None) is False])
        for number in range(count):
            code(edge, STRANGE, f"s{len(edge.seen)}-{number}", properties=stored)
        return count - len([one for one in edge.seen if getattr(one, "may_create", None) is False]) + before

    assert made(3) == 3
    running.reload(session_rate=0.001, session_burst=2)
    assert made(5) == 2


def test_open_clients_follow_except_announced_limits() -> None:
    """Keep alive and packet size were announced; rates, levels and filters were not."""
    running = Running(roles())
    edge = running.edge
    session = come(edge, principal("anna", roles=("device",)))
    session.read()
    running.reload(
        publish_rate_max=5.0,
        topic_levels_max=3,
        filters_per_session_max=1,
        keep_alive_max_s=9,
        maximum_packet_size=2048,
    )
    bounds = session.client.known_bounds
    assert (bounds.publish_rate_max, bounds.topic_levels_max, bounds.filters_max) == (5.0, 3, 1)
    assert (bounds.keep_alive_max_s, bounds.packet_bytes_max) == (3_600, EdgeSettings().maximum_packet_size)
    session.subscribe("down/a/b/c", "down/a", "down/b", qos=0)
    (suback,) = [packet for packet in session.read() if isinstance(packet, Suback)]
    assert list(suback.reason_codes) == [0x8F, 0, 0x97]
    assert not session.closed
    later = come(edge, principal("bert", "d", roles=("device",))).client.known_bounds
    assert (later.keep_alive_max_s, later.packet_bytes_max) == (9, 2_048)


def test_cached_topics_are_validated_again() -> None:
    running = Running(roles())
    session = come(running.edge, principal("anna", roles=("device",)))
    session.publish("up/a/b", qos=1, identifier=1)
    assert [packet.reason_code for packet in session.read()] == [0, 0x10]
    running.reload(topic_levels_max=2)
    session.publish("up/a/b", qos=1, identifier=2)
    assert [packet.reason_code for packet in session.read()] == [0x90]


def test_user_property_limits_of_codec_and_loop() -> None:
    """One bound, of the codec and of the loop."""
    running = Running()
    pairs: dict[int, object] = {PropertyId.USER_PROPERTY: [("k", "v" * 100)]}

    def ended() -> tuple[bool, bool]:
        one, other = running.edge.accept(), come_from(running.edge, STRANGE)
        other.connect("c")
        running.edge.turn(0.02)
        other.read()
        one.send(Connect("d", properties=pairs))
        other.publish("t", properties=pairs)
        running.edge.turn(0.02)
        said = [*one.read(), *other.read()]
        return one.closed, any(isinstance(packet, Disconnect) for packet in said)

    assert ended() == (False, False)
    running.reload(user_property_bytes_max=50)
    assert ended() == (True, True)
