"""SUBSCRIBE, PUBLISH, retained reads, wills, shared groups, $SYS and authentication at one edge's core."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from edge.clients.scram import Scram, make_user
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.node.ports import Publisher
from edge.publishing.publishing import Publishing
from edge.publishing.recording import Recording
from edge.publishing.sending import Sending
from edge.subscriptions import held_live
from mqtt.packets import Auth, Connack, Connect, Disconnect, Puback, Publish, Pubrec, Suback, Unsuback
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode
from tests.edge.edge_harness import Edge, Session, cluster_map
from tests.edge.test_scram import CLIENT_FINAL, CLIENT_FIRST, SALT, SERVER_NONCE
from wire.messages.cluster_map import ClusterMap, ShardEntry
from wire.messages.map_pages import map_pages
from wire.messages.nodes import HeartbeatReply, Moved
from wire.messages.redispatch import HandedOn, HandOn, SharePick
from wire.messages.retained import (
    DeliverRetained,
    ReadRetained,
    ReadRetainedAll,
    RetainedDelivered,
    RetainedMessage,
    RetainedPage,
)
from wire.messages.routes import (
    AddRoutes,
    Destinations,
    GroupDestinations,
    Invalidate,
    Invalidated,
    RemoveRoutes,
    ReportRoutes,
    Resolve,
    Resolved,
    RoutesAdded,
)
from wire.messages.sessions import InboundRecorded, InboundReleased, RecordInbound, ReleaseInbound, SubscribeSession
from wire.messages.wills import FireWill, Will, WillFired

DURABLE: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}


def publishes(session: Session) -> list[Any]:
    return [packet for packet in session.read() if isinstance(packet, Publish)]


def said(session: Session, kind: type) -> list[Any]:
    return [packet for packet in session.read() if isinstance(packet, kind)]


# --- routes


def test_suback_waits_for_the_route() -> None:
    """SUBACK leaves when the shard's owner says that every edge knows the filter."""
    edge = Edge()
    session = edge.client()
    edge.held = {AddRoutes}
    session.subscribe("a/+")
    assert session.read() == []
    (request,) = edge.take(AddRoutes)
    assert [entry.topic_filter for entry in request.routes] == ["a/+"]
    edge.router(RoutesAdded(request.request, request.shard, request.shard_epoch, request.sender_epoch - 1))
    assert session.read() == [], "an answer to the edge's former life"
    edge.router(RoutesAdded(request.request, request.shard, request.shard_epoch, request.sender_epoch))
    assert [packet.reason_codes for packet in session.read()] == [[2]]


def test_second_subscriber_waits_for_the_same_route() -> None:
    """PROTOCOL of routes: whoever asked first, SUBACK needs the filter acknowledged."""
    edge = Edge()
    one, two = edge.client("1"), edge.client("2")
    edge.held = {AddRoutes}
    one.subscribe("a")
    two.subscribe("a")
    (request,) = edge.take(AddRoutes)
    assert one.read() == two.read() == []
    edge.router(RoutesAdded(request.request, request.shard, request.shard_epoch, request.sender_epoch))
    assert one.read() and two.read()


def test_last_unsubscribe_removes_the_route() -> None:
    """A filter's route goes with its last subscriber, after UNSUBACK [MQTT-3.10.4-1]."""
    edge = Edge()
    one, two = edge.client("1"), edge.client("2")
    one.subscribe("a")
    two.subscribe("a")
    one.read()
    one.unsubscribe("a", "never")
    assert [packet.reason_codes for packet in one.read()] == [[0, 0x11]]
    edge.round(1.0)
    assert not any(isinstance(message, RemoveRoutes) for message in edge.seen)
    two.drop()
    edge.round(1.0)
    removed = [message for message in edge.seen if isinstance(message, RemoveRoutes)]
    assert [entry.topic_filter for message in removed for entry in message.routes] == ["a"]


def test_miss_parks_the_publisher_and_is_asked_once() -> None:
    """All misses of a round and shard go in one question; order behind it is kept."""
    edge = Edge()
    subscriber, one, two = edge.client("s"), edge.client("1"), edge.client("2")
    subscriber.subscribe("a")
    subscriber.read()
    edge.held = {Resolve}
    for session in (one, two):
        session.publish("a", b"1", 1, 1)
        session.publish("a", b"2", 1, 2)
    (question,) = edge.take(Resolve)
    assert question.topics == ["a"] and publishes(subscriber) == []
    edge.router(Resolved(question.request, question.shard, question.shard_epoch, [Destinations()], [0]))
    edge.round()
    assert [packet.payload for packet in publishes(subscriber)] == [b"1", b"2", b"1", b"2"]
    assert [packet.packet_identifier for packet in said(one, Puback)] == [1, 2]


def test_invalidation_voids_what_is_asked() -> None:
    """An answer that an invalidation overtook is not used: asked again, the publisher waits on."""
    edge = Edge()
    publisher = edge.client()
    edge.held = {Resolve, Invalidated}
    publisher.publish("a/b", b"1", 1, 1)
    (question,) = edge.take(Resolve)
    edge.router(Invalidate(5, question.shard, 1, ["a/+"]))
    assert edge.take(Invalidated) == [Invalidated(5, question.shard, 1)]
    edge.router(Resolved(question.request, question.shard, question.shard_epoch, [Destinations()], [0]))
    edge.round()
    (again,) = edge.take(Resolve)
    assert said(publisher, Puback) == []
    edge.router(Resolved(again.request, again.shard, again.shard_epoch, [Destinations()], [0]))
    edge.round()
    assert said(publisher, Puback)[0].reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS


def test_invalidation_drops_the_cached_answer() -> None:
    """The next PUBLISH asks again."""
    edge = Edge()
    publisher = edge.client()
    publisher.publish("a/b", b"1", 1, 1)
    edge.router(Invalidate(5, 0, 1, ["#"]))
    edge.held = {Resolve}
    publisher.publish("a/b", b"2", 1, 2)
    assert len(edge.take(Resolve)) == 1


def test_question_is_repeated_after_moved_and_after_silence() -> None:
    """Nothing waits for ever for a router that has gone."""
    edge = Edge()
    publisher = edge.client()
    edge.held = {Resolve}
    publisher.publish("a", b"1", 1, 1)
    (question,) = edge.take(Resolve)
    edge.router(Moved(question.request, "shard", question.shard, 2, 2))
    edge.round(0.2)
    (again,) = edge.take(Resolve)
    edge.round(5.0)
    assert len(edge.take(Resolve)) == 1 and again.topics == ["a"]


def test_new_owner_of_a_shard_is_told_filters_and_that_nothing_is_cached() -> None:
    """It gets the edge's report, and a registration without topics: what the former owner answered is void."""
    edge = Edge()
    subscriber, publisher = edge.client("s"), edge.client("p")
    subscriber.subscribe("f/#")
    publisher.publish("a", b"1")
    moved: ClusterMap = cluster_map(2)
    moved.shards = [ShardEntry(2, "r0"), ShardEntry(2, "r0")]
    edge.held = {ReportRoutes, Resolve}
    edge.router(*map_pages(moved))
    edge.router(HeartbeatReply(1, edge.now, 1000.0, 2, "r0"))
    edge.round()
    reported = {
        entry.topic_filter for report in edge.take(ReportRoutes) for sender in report.reports for entry in sender.routes
    }
    registered = [message for message in edge.take(Resolve) if message.kept]
    assert "f/#" in reported
    assert [message.topics for message in registered] == [[], []]
    assert {message.shard_epoch for message in registered} == {2}
    publisher.publish("a", b"2")
    assert [message.topics for message in edge.take(Resolve)] == [["a"]]


def test_overlapping_subscriptions_give_one_copy() -> None:
    """Highest QoS [MQTT-3.3.4-2], all identifiers [MQTT-3.3.4-4], RETAIN as published if one asks for it."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    session.subscribe("a/#", qos=0, properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [1]})
    session.subscribe("a/+", qos=1, properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [300]})
    session.read()
    publisher.publish("a/b", b"x", 2, 1)
    (copy,) = publishes(session)
    assert copy.qos == 1
    assert sorted(copy.properties[PropertyId.SUBSCRIPTION_IDENTIFIER]) == [1, 300]


def test_no_local_holds_back_only_the_own_copy() -> None:
    """[MQTT-3.8.3-3]."""
    edge = Edge()
    one, two = edge.client("1"), edge.client("2")
    one.subscribe("a", no_local=True)
    two.subscribe("a", no_local=True)
    for session in (one, two):
        session.read()
    one.publish("a", b"x")
    edge.round()
    assert (publishes(one), len(publishes(two))) == ([], 1)


@pytest.mark.parametrize(
    ("topic_filter", "code"),
    [
        ("a/#/b", 0x81),
        ("a+", 0x81),
        ("a/" * 40, 0x8F),
        ("a" * 2000, 0x8F),
        ("$share//a", 0x81),
        ("$share/g", 0x81),
        ("$share/g+/a", 0x81),
    ],
)
def test_filters_that_are_refused(topic_filter: str, code: int) -> None:
    """Each filter has its own code [MQTT-3.9.3-1]; a malformed one ends the connection or is refused."""
    session = Edge().client()
    session.subscribe("good", topic_filter)
    answers = session.read()
    if isinstance(answers[0], Suback):
        assert answers[0].reason_codes[0] == 2 and answers[0].reason_codes[1] >= 0x80
    else:
        assert answers[0].reason_code in (code, 0x81, 0x82, 0x8F) and session.closed


def test_filters_of_a_session_are_bounded() -> None:
    """0x97; one that it has may be replaced."""
    session = Edge(EdgeLimits(sys_interval_s=0, filters_per_session_max=2)).client()
    session.subscribe("a", "b", "c")
    session.subscribe("a", qos=0)
    assert [packet.reason_codes for packet in session.read()] == [[2, 2, 0x97], [0]]


@pytest.mark.parametrize(
    ("topic", "code"),
    [("$SYS/broker/uptime", 0x87), ("$share/g/a", 0x87), ("$SYS/broker/connection/x/state", 0x10), ("$other", 0x10)],
)
def test_topics_that_are_ours(topic: str, code: int) -> None:
    """$SYS is not for clients, except for what bridges announce about themselves."""
    session = Edge().client()
    session.publish(topic, b"x", 1, 1)
    session.publish(topic, b"x", 2, 2)
    (puback, pubrec) = session.read()
    assert (puback.reason_code, pubrec.reason_code) == (code, 0 if code == 0x10 else code)
    assert isinstance(pubrec, Pubrec)


@pytest.mark.parametrize("topic", ["a/" * 40, "a" * 2000, "/" * 65535])
def test_topic_beyond_the_limits_ends_the_connection(topic: str) -> None:
    """0x90, before anything is asked about it."""
    edge = Edge()
    session = edge.client()
    session.publish(topic)
    assert [packet.reason_code for packet in session.read()] == [0x90] and session.closed
    assert not any(isinstance(message, Resolve) and message.topics for message in edge.seen)


def test_topic_aliases_towards_the_client() -> None:
    """[MQTT-3.1.2-26]: no more than it takes, the first topics get one; an alias replaces the name afterwards."""
    edge = Edge()
    session = edge.client("s", properties={PropertyId.TOPIC_ALIAS_MAXIMUM: 1})
    plain, publisher = edge.client("t"), edge.client("p")
    session.subscribe("topic/#")
    plain.subscribe("topic/#")
    for subscriber in (session, plain):
        subscriber.read()
    for qos in range(3):
        publisher.publish("topic/1", b"x", qos, qos)
    publisher.publish("topic/2", b"y")
    copies = publishes(session)
    assert [copy.topic_name for copy in copies] == ["topic/1", "", "", "topic/2"]
    assert [copy.properties.get(PropertyId.TOPIC_ALIAS) for copy in copies] == [1, 1, 1, None]
    assert [copy.topic_name for copy in publishes(plain)] == ["topic/1"] * 3 + ["topic/2"]


# --- retained


def retained(topic: str, payload: bytes = b"old") -> RetainedMessage:
    return RetainedMessage(topic, payload, 1)


def test_retained_copies_follow_suback() -> None:
    """RETAIN 1 [MQTT-3.3.1-8], at most the granted QoS; one partition for a concrete filter, all nodes otherwise."""
    edge = Edge()
    edge.retained = [retained("a/b")]
    session = edge.client()
    session.subscribe("a/b", qos=0)
    suback, copy = session.read()
    assert isinstance(suback, Suback)
    assert (copy.topic_name, copy.retain, copy.qos, copy.payload) == ("a/b", True, 0, b"old")
    session.subscribe("a/+", qos=2)
    _, copy = session.read()
    assert copy.retain and copy.qos == 1
    kinds = [type(message) for message in edge.seen if isinstance(message, ReadRetained | ReadRetainedAll)]
    assert kinds == [ReadRetained, ReadRetainedAll]


@pytest.mark.parametrize(("handling", "copies"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(handling: int, copies: list[int]) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11], for a first and for a repeated SUBSCRIBE."""
    edge = Edge()
    edge.retained = [retained("a")]
    session = edge.client()
    got = []
    for _ in range(2):
        session.subscribe("a", retain_handling=handling)
        got.append(len(publishes(session)))
    assert got == copies


def test_shared_subscription_reads_no_retained_messages() -> None:
    """Section 4.8.2."""
    edge = Edge()
    edge.retained = [retained("a")]
    session = edge.client()
    session.subscribe("$share/g/a")
    assert publishes(session) == []


def test_live_messages_wait_for_the_retained_ones() -> None:
    """Retained first, then what was held, each once: a retained copy that is among the held ones is left out."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    edge.held = {ReadRetained}
    session.subscribe("a", properties={PropertyId.SUBSCRIPTION_IDENTIFIER: [7]})
    for number, payload in enumerate((b"1", b"2", b"3")):
        publisher.publish("a", payload, number, number)
    assert [type(packet) for packet in session.read()] == [Suback]
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"0"), retained("a", b"2")], partition=read.partition))
    copies = publishes(session)
    assert [(copy.payload, copy.retain, copy.qos) for copy in copies] == [
        (b"0", True, 1),
        (b"1", False, 0),
        (b"2", False, 1),
        (b"3", False, 2),
    ]
    assert all(copy.properties[PropertyId.SUBSCRIPTION_IDENTIFIER] == [7] for copy in copies)
    publisher.publish("a", b"4")
    assert [copy.payload for copy in publishes(session)] == [b"4"]
    assert len(edge.core.held) == 0


def test_what_is_held_for_one_subscription_is_not_overtaken_by_another() -> None:
    """Order of a topic: neither UNSUBSCRIBE nor a second filter lets a later message pass one that is held."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    edge.held = {ReadRetained, ReadRetainedAll}
    session.subscribe("a/b")
    publisher.publish("a/b", b"1", 1, 1)
    session.subscribe("a/+", retain_handling=2)  # reads nothing: it would be served at once
    publisher.publish("a/b", b"2", 1, 2)
    session.subscribe("a/#")
    publisher.publish("a/b", b"3", 1, 3)
    assert publishes(session) == []
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a/b", b"0")], partition=read.partition))
    assert [copy.payload for copy in publishes(session)] == [b"0"]  # the other filter waits still
    publisher.publish("a/b", b"4", 1, 4)
    session.unsubscribe("a/#")
    assert [copy.payload for copy in publishes(session)] == [b"1", b"2", b"3", b"4"]
    assert len(edge.core.held) == 0


def test_unsubscribe_ends_holding_and_reading() -> None:
    """Held messages go out before UNSUBACK; retained ones that come for a filter that is gone do not."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    edge.held = {ReadRetained}
    session.subscribe("a")
    publisher.publish("a", b"1", 1, 1)
    session.read()
    session.unsubscribe("a")
    assert [type(packet) for packet in session.read()] == [Publish, Unsuback]
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"0")], partition=read.partition))
    edge.round(6.0)
    assert session.read() == []


def test_holding_ends_in_time_and_many_messages_are_held() -> None:
    """At most retained_hold_s; within it hundreds of messages of every QoS keep their order."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p", version=4)
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    payloads = [b"%d" % number for number in range(200)]
    for number, payload in enumerate(payloads):
        publisher.publish("a", payload, 0 if number % 2 else 1, number + 1 if number % 2 == 0 else 0)
    edge.round(4.0)
    assert publishes(session) == []
    edge.round(1.1)
    held = publishes(session)
    assert [copy.payload for copy in held if copy.qos == 0] == payloads[1::2]
    assert [copy.payload for copy in held if copy.qos == 1] == payloads[::2][:64]  # the window of its client
    publisher.publish("a", b"late")  # the read is still under way: messages pass
    edge.round(0.1)
    assert [copy.payload for copy in publishes(session)] == [b"late"]
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"old")], partition=read.partition))
    assert publishes(session) == [] and len(edge.core.held) == 0  # older than what has passed


def test_holding_ends_when_the_messages_are_large() -> None:
    """A mebibyte for each client, however few messages that are."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p", version=4)
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    payload = bytes(400_000)
    for number in range(2):
        publisher.publish("a", payload, 1, number + 1)
        edge.round(0.1)
    assert publishes(session) == [] and "holds_cut_full" not in edge.core.counts
    publisher.publish("a", payload, 1, 3)
    edge.round(0.1)
    assert [copy.payload for copy in publishes(session)] == [payload] * 3
    assert edge.core.counts["holds_cut_full"] == 1


def test_all_that_is_held_has_a_bound_and_the_largest_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has more than its part of the edge's bound, once that is reached, and nobody else."""
    monkeypatch.setattr(held_live, "EDGE_BYTES_MAX", 300_000)
    edge = Edge()
    sessions, publisher = [edge.client(name) for name in "stu"], edge.client("p", version=4)
    edge.held = {ReadRetained}
    for number, session in enumerate(sessions):
        session.subscribe(f"a{number}")
        session.read()
    for number, count in enumerate((3, 1, 0)):
        for _ in range(count):
            publisher.publish(f"a{number}", bytes(80_000))
    edge.round(0.1)
    assert [len(publishes(session)) for session in sessions] == [3, 0, 0]
    edge.round(5.2)
    assert [len(publishes(session)) for session in sessions] == [0, 1, 0]


def test_hold_of_a_client_that_leaves_is_dropped() -> None:
    """Nothing is kept for a connection that is gone."""
    edge = Edge()
    session = edge.client("s")
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.drop()
    edge.round(0.2)
    assert len(edge.core.held) == 0 and len(edge.core.hot.counters()) > 0
    assert edge.core.hot.counters()["connections"] == 0


def test_silent_partition_is_counted_and_live_messages_go_on() -> None:
    """A wildcard read ends after retained_hold_s without those who did not answer."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    edge.held = {ReadRetainedAll}
    session.subscribe("a/#")
    session.read()
    publisher.publish("a/b", b"live")
    edge.round(5.2)
    assert [copy.payload for copy in publishes(session)] == [b"live"]
    assert edge.core.counts["retained_partitions_missed"] == 4


class Registers:
    """Stands before the loop and keeps what goes to a register alone until the test says that it stands there."""

    def __init__(self, edge: Edge) -> None:
        self.waiting: list[Any] = []  # what to call with the reason code
        core, loop = edge.core, cast(Publisher, self)
        self._hot = core.hot
        sending = Sending(core.node, loop, core.clients, core.routes)
        recording = Recording(core.node, loop, core.clients, core.requests, core.routes, core.picking, sending)
        core.publishing = Publishing(core.node, loop, core.clients, core.routes, sending, recording)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hot, name)

    def publish(self, route: Any, publish: Any, register: int = -1, *more: Any) -> int:
        if register < 0:
            return int(self._hot.publish(route, publish, register, *more))
        self.waiting.append(more[3])
        return 1


def test_a_retained_message_is_live_when_it_stands_in_its_register() -> None:
    """Before that a SUBSCRIBE of somebody who has it could still read the one before it."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    session.subscribe("a")
    session.read()
    registers = Registers(edge)
    publisher.publish("a", b"new", 1, 1, retain=True)
    publisher.publish("a", b"next", 1, 2)
    assert session.read() == publisher.read() == []
    registers.waiting.pop()(0)
    edge.round()
    assert [copy.payload for copy in publishes(session)] == [b"new", b"next"]
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0, 0]


def test_what_the_register_refuses_reaches_nobody() -> None:
    """Simulation --hardware, seed 105: it was delivered live, and answered with a failure."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    session.subscribe("a")
    session.read()
    registers = Registers(edge)
    publisher.publish("a", b"new", 1, 1, retain=True)
    registers.waiting.pop()(0x89)
    edge.round()
    assert publishes(session) == []
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0x97]


def test_what_a_durable_client_sends_again_elsewhere_is_not_live_here_as_well() -> None:
    """Simulation seed 76039: it was resent through another edge, and came behind newer ones to who subscribed since."""
    edge = Edge()
    subscriber = edge.client("s")
    publisher = edge.client("p", properties=DURABLE)
    subscriber.subscribe("a")
    subscriber.read()
    registers = Registers(edge)
    publisher.publish("a", b"resent elsewhere", 1, 1, retain=True)
    publisher.drop()
    registers.waiting.pop()(0)
    edge.round()
    assert publishes(subscriber) == []


def test_holding_that_ends_while_a_register_is_written_loses_nothing() -> None:
    """Simulation seed 1005: the message went where live ones had been held when it came, and nobody looked there."""
    edge = Edge()
    session, publisher = edge.client("s"), edge.client("p")
    edge.held = {ReadRetained}
    session.subscribe("a")
    session.read()
    registers = Registers(edge)
    publisher.publish("a", b"new", 1, 1, retain=True)
    (read,) = edge.take(ReadRetained)
    edge.storage(RetainedPage(read.request, [retained("a", b"old")], partition=read.partition))
    edge.round()
    registers.waiting.pop()(0)
    edge.round()
    assert [copy.payload for copy in publishes(session)] == [b"old", b"new"]
    assert [packet.reason_code for packet in said(publisher, Puback)] == [0]


# --- durable sessions


def test_durable_subscribe_is_the_partitions() -> None:
    """Its SUBACK is the partition's answer; retained copies go through its queue, the last ends the holding there."""
    edge = Edge()
    edge.retained = [retained("a")]
    session = edge.client("d", properties=DURABLE)
    session.subscribe("a", qos=1)
    assert [packet.reason_codes for packet in session.read()] == [[1]]
    request = next(message for message in edge.seen if isinstance(message, SubscribeSession))
    assert (request.session, request.owner_epoch) == (session.client.session, session.client.owner_epoch)
    delivered = [message for message in edge.seen if isinstance(message, DeliverRetained)]
    assert [len(message.messages) for message in delivered] == [1, 0]
    assert [message.done for message in delivered] == [False, True]
    session.unsubscribe("a")
    assert isinstance(session.read()[0], Unsuback)


def test_qos2_of_a_durable_publisher_is_recorded_first() -> None:
    """PUBREC after the record, PUBCOMP after its release [MQTT-4.3.3-8]; an unknown PUBREL is answered too."""
    edge = Edge()
    session = edge.client("d", properties=DURABLE)
    edge.held = {RecordInbound, ReleaseInbound}
    session.publish("a", b"x", 2, 5)
    assert session.read() == []
    edge.held = {ReleaseInbound}
    edge.round()
    assert [packet.packet_identifier for packet in said(session, Pubrec)] == [5]
    session.send(b"\x62\x02\x00\x05")
    assert session.read() == []
    edge.held = set()
    edge.round()
    (pubcomp,) = session.read()
    assert (pubcomp.packet_identifier, pubcomp.reason_code) == (5, 0)


def test_a_refused_qos2_message_is_told_when_its_record_is_gone() -> None:
    """Simulation seed 66065: the edge died in between, its client does not speak of it again, the record stayed."""
    edge = Edge()
    subscriber, session = edge.client("s"), edge.client("d", properties=DURABLE)
    subscriber.subscribe("a")
    subscriber.read()
    registers = Registers(edge)
    edge.held = {ReleaseInbound}
    session.publish("a", b"x", 2, 5, retain=True)
    edge.round()
    registers.waiting.pop()(0x97)
    session.publish("b", b"y", 1, 6)
    edge.round()
    assert session.read() == []
    (release,) = edge.take(ReleaseInbound)
    assert release.packet_identifier == 5
    edge.storage(InboundReleased(release.request, True))
    edge.round()
    assert [(type(packet), packet.reason_code) for packet in session.read()] == [(Pubrec, 0x97), (Puback, 0x10)]


def test_where_a_groups_qos2_copy_goes_is_recorded_first() -> None:
    """A repeat goes where the record says and reaches the member once; a dead edge in it is replaced, by attempt."""
    edge = Edge()
    member = edge.client("m")
    member.subscribe("$share/g/a")
    member.read()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 1)])])
    publisher = edge.client("d", properties=DURABLE)
    edge.held = {RecordInbound}

    def recorded(counter: int, pick: SharePick) -> list[SharePick]:
        edge.round()
        (asked,) = edge.take(RecordInbound)
        edge.storage(InboundRecorded(asked.request, counter, picks=[pick]))
        return list(asked.picks)

    here, gone = SharePick(b"g/a", -1, "e0", 1), SharePick(b"g/a", -1, "e9", 4)
    publisher.publish("a", b"1", 2, 1)
    assert publishes(member) == []
    assert recorded(1, here) == [here]
    assert [copy.payload for copy in publishes(member)] == [b"1"]
    assert len(said(publisher, Pubrec)) == 1
    publisher.publish("a", b"1", 2, 1, dup=True)  # it did not see PUBREC
    recorded(1, here)
    assert publishes(member) == []
    assert len(said(publisher, Pubrec)) == 1
    publisher.publish("a", b"2", 2, 2)
    recorded(2, gone)  # another edge picked one that has died since
    again = SharePick(b"g/a", -1, "e0", 1, 1)
    assert publishes(member) == []
    assert recorded(2, again) == [again]
    assert [copy.payload for copy in publishes(member)] == [b"2"]


# --- wills, groups, $SYS, fencing


def test_will_is_fanned_out_and_reported() -> None:
    """The partition hears WillFired when everybody has it."""
    edge = Edge()
    session = edge.client("s")
    session.subscribe("w")
    session.read()
    edge.held = {WillFired}
    edge.storage(FireWill(3, 1, 1, 17, Will("w", b"bye", 1)))
    edge.round()
    (copy,) = publishes(session)
    assert (copy.payload, copy.qos) == (b"bye", 1)
    assert [(m.request, m.partition, m.op_index) for m in edge.take(WillFired)] == [(3, 1, 17)]


def test_shared_group_takes_turns() -> None:
    """One member per message, round robin [MQTT-4.8.2-4]; one that left gets nothing."""
    edge = Edge()
    members = [edge.client(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/g/a", qos=0)
        member.read()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 3)])])
    publisher = edge.client("p")
    for number in range(6):
        publisher.publish("a", b"%d" % number)
    edge.round()
    assert [len(publishes(member)) for member in members] == [2, 2, 2]
    members[0].drop()
    for number in range(4):
        publisher.publish("a", b"%d" % number)
    assert [len(publishes(member)) for member in members[1:]] == [2, 2]


def group_of_two(qos: int, **limits: Any) -> tuple[Edge, Session, Session, Session]:
    """A publisher, and two members of a group whose first turn is the first one's."""
    edge = Edge()
    first, second = edge.client("m0", **limits), edge.client("m1")
    for member in (first, second):
        member.subscribe("$share/g/a", qos=qos)
        member.read()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 2)])])
    return edge, edge.client("p"), first, second


def test_what_a_member_did_not_acknowledge_goes_to_another() -> None:
    """QoS 1, section 4.8.2: in order, with DUP 0, without what it acknowledged; never back to who left."""
    edge, publisher, first, second = group_of_two(1)
    for number in range(6):
        publisher.publish("a", b"%d" % number, 1, number + 1)
    sent, others = publishes(first), publishes(second)
    assert [copy.payload for copy in sent + others] == [b"0", b"2", b"4", b"1", b"3", b"5"]
    first.send(b"\x40\x02" + (sent[1].packet_identifier or 0).to_bytes(2, "big"))
    first.drop()
    edge.round()
    again = publishes(second)
    assert [(copy.payload, copy.qos, copy.dup) for copy in again] == [(b"0", 1, False), (b"4", 1, False)]
    assert edge.core.counts["shares_redispatched"] == 2
    second.drop()  # nobody is left: ephemeral members keep nothing
    edge.round()
    assert edge.core.hot.counters()["dropped_no_pick"] == 5


def test_qos2_that_was_sent_stays_with_its_member() -> None:
    """[MQTT-4.8.2-5]; what still waited for the window was sent to nobody, and goes to another member."""
    edge, publisher, first, second = group_of_two(2, properties={PropertyId.RECEIVE_MAXIMUM: 2})
    for number in range(8):
        publisher.publish("a", b"%d" % number, 2, number + 1)
    assert [copy.payload for copy in publishes(first)] == [b"0", b"2"]
    assert [copy.payload for copy in publishes(second)] == [b"1", b"3", b"5", b"7"]
    first.drop()
    edge.round()
    assert [(copy.payload, copy.qos) for copy in publishes(second)] == [(b"4", 2), (b"6", 2)]


def test_what_a_member_refused_goes_to_nobody_else() -> None:
    """[MQTT-4.8.2-6]; and one that expired meanwhile neither [MQTT-3.3.2-5]."""
    edge, publisher, first, second = group_of_two(1)
    publisher.publish("a", b"refused", 1, 1)
    publisher.publish("a", b"other", 1, 2)
    publisher.publish("a", b"short", 1, 3, properties={PropertyId.MESSAGE_EXPIRY_INTERVAL: 5})
    (refused, _) = publishes(first)
    publishes(second)
    first.send(b"\x40\x03" + (refused.packet_identifier or 0).to_bytes(2, "big") + b"\x97")
    edge.round(6.0)
    first.drop()
    edge.round()
    assert publishes(second) == []


def test_a_members_unfinished_copies_go_to_another_edge() -> None:
    """Nobody is left here: the copy is a pick at the edge that has a member, and refused there it goes to storage."""
    edge, publisher, first, second = group_of_two(1)
    publisher.publish("a", b"1", 1, 1)
    publishes(first)
    second.drop()
    edge.routes["a"] = Destinations(groups=[GroupDestinations("g/a", [("e0", 1), ("e1", 1)])])
    edge.router(Invalidate(1, 0, 1, ["a"]))
    first.drop()
    edge.round()
    edge.round()
    peer = edge.core.peers.get("e1")
    assert peer is not None and peer.link.bytes_unacknowledged > 0
    assert edge.core.counts["shares_redispatched"] == 1
    assert edge.core.hot.counters()["dropped_no_pick"] == 0


def hand_on(pick: SharePick | None = None, qos: int = 2) -> HandOn:
    return HandOn(0, 1, 1, 5, b"g/a", Will("a", b"left", qos), pick)


def test_what_a_durable_member_left_goes_where_its_partition_recorded() -> None:
    """Nothing is sent before the pick is recorded; a repeat reaches nobody twice and is answered."""
    edge, _, first, second = group_of_two(2)
    here = SharePick(b"g/a", -1, "e0", 1)
    edge.held = {HandedOn}
    edge.storage(hand_on())
    edge.round()
    assert [answer.pick for answer in edge.take(HandedOn)] == [here]
    assert publishes(first) + publishes(second) == []
    edge.storage(hand_on(here))
    edge.round()
    assert [(copy.payload, copy.qos) for copy in publishes(first) + publishes(second)] == [(b"left", 2)]
    assert [(answer.number, answer.pick) for answer in edge.take(HandedOn)] == [(5, None)]
    edge.storage(hand_on(here))  # its partition has not heard it
    edge.round()
    assert publishes(first) + publishes(second) == []
    assert [(answer.number, answer.pick) for answer in edge.take(HandedOn)] == [(5, None)]


def test_a_pick_that_is_over_is_replaced_on_record_and_a_group_that_ended_gets_nothing() -> None:
    """An edge that died is replaced by a higher attempt, which waits for its record too."""
    edge, _, first, second = group_of_two(1)
    edge.held = {HandedOn}
    edge.storage(hand_on(SharePick(b"g/a", -1, "e9", 4, 2)))
    edge.round()
    again = SharePick(b"g/a", -1, "e0", 1, 3)
    assert [answer.pick for answer in edge.take(HandedOn)] == [again]
    assert publishes(first) + publishes(second) == []
    edge.routes["a"] = Destinations()
    edge.router(Invalidate(1, 0, 1, ["a"]))
    edge.storage(hand_on(again))
    edge.round()
    assert [(answer.number, answer.pick) for answer in edge.take(HandedOn)] == [(5, None)]
    assert edge.core.counts["shares_ended"] == 1


def test_an_edge_that_dies_with_what_was_left_is_replaced_on_record() -> None:
    """It was sent there and not taken: nothing goes to the next destination before that is recorded too."""
    edge, _, first, second = group_of_two(1)
    edge.held = {HandedOn}
    edge.storage(hand_on(SharePick(b"g/a", -1, "e1", 1)))
    edge.round()
    assert edge.take(HandedOn) == []
    moved = cluster_map(epoch=2)
    moved.nodes["e1"] = replace(moved.nodes["e1"], incarnation=2)
    edge.router(*map_pages(moved))
    edge.round()
    assert [answer.pick for answer in edge.take(HandedOn)] == [SharePick(b"g/a", -1, "e0", 1, 1)]
    assert publishes(first) + publishes(second) == []


def test_sticky_group_keeps_a_topic_with_its_member() -> None:
    """With ``shared_subscriptions = "sticky"`` a topic's messages stay in order at one member, until it leaves."""
    edge = Edge(EdgeLimits(sys_interval_s=0, sticky_shares=True))
    members = [edge.client(f"m{number}") for number in range(3)]
    topics = [f"t{number}" for number in range(12)]
    for member in members:
        member.subscribe("$share/g/+", qos=0)
        member.read()
    for topic in topics:
        edge.routes[topic] = Destinations(groups=[GroupDestinations("g/+", [("e0", 3)])])
    publisher = edge.client("p")
    for _ in range(5):
        for topic in topics:
            publisher.publish(topic, b"m")
    got = [[copy.topic_name for copy in publishes(member)] for member in members]
    assert sum(map(len, got)) == 60 and all(got)
    assert all(count in (0, 5) for topic in topics for count in (names.count(topic) for names in got))
    members[0].drop()
    for topic in topics:
        publisher.publish(topic, b"m")
    assert sorted(copy.topic_name for member in members[1:] for copy in publishes(member)) == sorted(topics)


def test_sys_is_delivered_at_subscribe_and_when_it_changes() -> None:
    """$SYS/# has this edge's figures; # never matches them [MQTT-4.7.2-1]."""
    edge = Edge(EdgeLimits(sys_interval_s=10))
    session, other = edge.client("s"), edge.client("o")
    session.subscribe("$SYS/#", qos=0)
    other.subscribe("#")
    topics = {copy.topic_name for copy in publishes(session)}
    assert {"$SYS/broker/version", "$SYS/broker/clients/connected"} <= topics
    edge.client("more")
    edge.round(10.1)
    assert "$SYS/broker/clients/connected" in {copy.topic_name for copy in publishes(session)}
    assert publishes(other) == []


def test_fenced_edge_acknowledges_nothing_and_goes_on_with_qos_0() -> None:
    """Without a lease QoS 1 waits unread, QoS 0 between clients of this edge passes."""
    edge = Edge()
    session, publisher, other = edge.client("s"), edge.client("p"), edge.client("q")
    session.subscribe("a", qos=0)
    publisher.publish("a", b"0")
    assert len(publishes(session)) == 1
    edge.core.lease.lease_until = edge.now
    edge.core.hot.round_end_ns = 0  # a lease that is taken by hand is not among what the core waits for
    edge.round()
    publisher.publish("a", b"1")
    other.publish("a", b"2", 1, 1)
    edge.round()
    assert [copy.payload for copy in publishes(session)] == [b"1"] and other.read() == []
    edge.renew()
    edge.round()
    assert [copy.payload for copy in publishes(session)] == [b"2"]
    assert len(said(other, Puback)) == 1


# --- authentication


METHOD: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "SCRAM-SHA-256"}


def scram_edge() -> Edge:
    return Edge(methods=[Scram({"user": make_user("pencil", SALT)}, lambda: SERVER_NONCE, b"secret")])


def authenticate(edge: Edge) -> Session:
    session = edge.accept(ListenerPolicy("tls", False))
    session.send(Connect("c", properties=METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
    (auth,) = session.read()
    assert auth.reason_code == 0x18 and auth.properties[PropertyId.AUTHENTICATION_METHOD] == "SCRAM-SHA-256"
    session.send(Auth(0x18, METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FINAL}))
    return session


def test_scram_before_connack() -> None:
    """CONNACK has the method and the server's proof [MQTT-4.12.0-4]; who was proved is the client's identity."""
    session = authenticate(scram_edge())
    (connack,) = session.read()
    assert isinstance(connack, Connack) and connack.reason_code == 0
    assert connack.properties[PropertyId.AUTHENTICATION_DATA].startswith(b"v=")  # type: ignore[attr-defined]
    assert session.client.identity == "user"


def test_reauthentication() -> None:
    """AUTH 0x19 begins another exchange, AUTH 0x00 ends it; a wrong proof ends the connection [MQTT-4.12.1-2]."""
    for proof, ends in ((CLIENT_FINAL, False), (b"c=biws,r=x,p=AAAA", True)):
        edge = scram_edge()
        session = authenticate(edge)
        session.read()
        session.send(Auth(0x19, METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
        assert [packet.reason_code for packet in session.read()] == [0x18]
        session.send(Auth(0x18, METHOD | {PropertyId.AUTHENTICATION_DATA: proof}))
        (answer,) = session.read()
        assert (type(answer), answer.reason_code) == ((Disconnect, 0x87) if ends else (Auth, 0))


@pytest.mark.parametrize(
    "packet",
    [
        Auth(0x18, METHOD),  # no exchange is under way
        Auth(0x19, {PropertyId.AUTHENTICATION_METHOD: "OTHER"}),  # [MQTT-4.12.0-5]
        Auth(0x00, METHOD),  # only the server says success
    ],
)
def test_auth_out_of_turn(packet: Auth) -> None:
    """A protocol error ends the connection."""
    session = authenticate(scram_edge())
    session.read()
    session.send(packet)
    assert session.closed and session.read()[0].reason_code >= 0x80


def test_packets_before_the_exchange_is_over() -> None:
    """Only AUTH and DISCONNECT may come [MQTT-3.1.2-30]; without a method AUTH is an error [MQTT-4.12.0-6]."""
    edge = scram_edge()
    session = edge.accept()
    session.send(Connect("c", properties=METHOD | {PropertyId.AUTHENTICATION_DATA: CLIENT_FIRST}))
    session.read()
    session.subscribe("a")
    assert session.closed
    plain = edge.client("d")
    plain.send(Auth(0x19, METHOD))
    assert plain.closed


def test_a_retained_read_that_began_under_a_former_primary_begins_again() -> None:
    """R12: hold at the new primary first, then read anew; what was unsubscribed meanwhile is not read."""
    edge = Edge()
    edge.retained = [RetainedMessage("a/b", b"v", 1, b"")]
    session = edge.client("d", properties={PropertyId.SESSION_EXPIRY_INTERVAL: 100})
    edge.held = {DeliverRetained}
    session.subscribe("a/b", qos=1)
    subscribed = next(m.request for m in edge.seen if isinstance(m, SubscribeSession))
    first, last = edge.take(DeliverRetained)
    assert (first.read, last.read, len(first.messages), last.done) == (subscribed, subscribed, 1, True)
    edge.seen.clear()
    edge.storage(RetainedDelivered(first.request, again=True))
    edge.storage(RetainedDelivered(last.request))
    (begin,) = edge.take(DeliverRetained)
    assert begin.read == begin.request and not begin.messages and not begin.done
    assert not any(isinstance(m, ReadRetained) for m in edge.seen)
    edge.storage(RetainedDelivered(begin.request))
    edge.round()
    copies, done = edge.take(DeliverRetained)
    assert (copies.read, len(copies.messages), done.read, done.done) == (begin.request, 1, begin.request, True)
    session.unsubscribe("a/b")
    edge.storage(RetainedDelivered(copies.request, again=True))
    edge.round()
    assert edge.take(DeliverRetained) == []
