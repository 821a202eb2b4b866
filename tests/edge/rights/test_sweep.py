"""New rules for live clients: earlier grants are revoked, and pending messages are authorized at the write."""

import pytest

from edge.rights.sources import NO_RULES, RuleBook, Sources
from mqtt.packets import Will
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import acl, book, come, principal, roles, ruled, somebody
from wire.messages.sessions import OpenSession, UnsubscribeSession
from wire.messages.wills import FireWill, SessionWill, WillFired

BOTH: dict[str, object] = {"subscribe": ["down/#", "more/#"], "publish": ["#"]}
ALL: dict[str, object] = {"publish": ["#"], "subscribe": ["#"]}
LESS: dict[str, object] = {"subscribe": ["down/#"]}


def topics(session: Session) -> list[str]:
    return [packet.topic_name for packet in session.read() if hasattr(packet, "payload")]


def turns(edge: Edge) -> None:
    while edge.core.access.next_deadline() == 0.0:
        edge.turn()
    edge.turn()


@pytest.mark.parametrize("durable", [False, True])
def test_filters_without_grant_are_removed(durable: bool) -> None:
    edge = ruled(roles(device=BOTH))
    anna = somebody(edge, "anna", properties={17: 100} if durable else {})
    writer = somebody(edge, "writer")
    anna.subscribe("down/a", "more/a")
    anna.read()
    edge.core.replace_rules(book(roles(device=LESS, writer={"publish": ["#"]})))
    turns(edge)
    assert set(anna.client.subscriptions) == {"down/a"}
    assert edge.core.counts["revoked_filters"] == 1
    if durable:
        (dropped,) = [message for message in edge.seen if isinstance(message, UnsubscribeSession)]
        assert dropped.topic_filters == ["more/a"]
    assert not writer.client.subscriptions


def test_new_file_roles_apply_before_the_sweep() -> None:
    edge = ruled(acl("user anna\ntopic write a"))
    anna = somebody(edge, "anna")
    for text, may in (("a", ["a"]), ("b", ["b"]), ("c", [])):
        edge.core.replace_rules(book(acl(f"user anna\ntopic write {text}")))
        assert [topic for topic in ("a", "b") if edge.core.rights.may_publish(anna.client, topic, 0, False)] == may


def test_removed_acl_section_revokes_all() -> None:
    edge = ruled(acl("topic read x\nuser anna\ntopic read down"))
    anna = somebody(edge, "anna")
    anna.subscribe("down")
    anna.read()
    edge.core.replace_rules(book(acl("topic read x")))
    assert not edge.core.rights.may_receive(anna.client, "down")
    turns(edge)
    assert not anna.client.subscriptions


def test_added_acl_section_applies() -> None:
    """A user that the former file did not name gets other rule names and so another class."""
    edge = ruled(acl("topic read x"))
    anna = somebody(edge, "anna")
    assert not edge.core.rights.may_publish(anna.client, "up", 0, retain=False)
    edge.core.replace_rules(book(acl("topic read x\nuser anna\ntopic write up")))
    assert edge.core.rights.may_publish(anna.client, "up", 0, retain=False)


def test_subscribers_are_authorized_again_with_partial_grants() -> None:
    edge = ruled(acl("topic write #\nuser anna\ntopic read a/#"))
    anna, writer = somebody(edge, "anna"), somebody(edge, "")
    anna.subscribe("#")
    anna.read()
    writer.publish("a/x")
    edge.turn()
    assert topics(anna) == ["a/x"]
    edge.core.replace_rules(book(acl("topic write #\nuser anna\ntopic read a/#\ntopic deny a/x")))
    writer.publish("a/x")
    writer.publish("a/y")
    turns(edge)
    assert topics(anna) == ["a/y"]


def test_frequent_policy_steps_do_not_restart_a_pass() -> None:
    edge = ruled(roles())
    for number in range(450):
        somebody(edge, "", f"c{number}")
    sweep = edge.core.sweep
    judged = []
    for _ in range(8):
        edge.core.replace_rules(book(roles()))
        edge.turn()
        judged.append(sweep.judged)
    assert judged[-1] >= 4
    turns(edge)
    assert sweep.judged == edge.core.rights.changes


def test_unknown_listener_gives_no_rules() -> None:
    unknown, known = RuleBook({"other": NO_RULES}), book(Sources(roles(any=ALL).roles, anonymous=("any",)))
    for rules, may in ((unknown, False), (known, True)):
        session = somebody(Edge(rules=rules), "")
        session.subscribe("#")
        assert [packet.reason_codes for packet in session.read()] == [[2 if may else 0x87]]
        session.publish("a", qos=1, identifier=1)
        (answer,) = (packet for packet in session.read() if not hasattr(packet, "payload"))
        assert (answer.reason_code < 0x80) == may


@pytest.mark.parametrize(("owner", "fires"), [("anna", True), ("bert", False), ("", False)])
def test_fired_will_is_authorized_by_its_owner(owner: str, fires: bool) -> None:
    edge = ruled(acl("user anna\ntopic write gone\nuser bert\ntopic write else\nuser reader\ntopic read #"))
    reader = somebody(edge, "reader", "reader")
    reader.subscribe("gone")
    reader.read()
    edge.core.publishing.fire_will("s0", FireWill(7, 0, 1, 3, SessionWill("gone", b"x", 0, False), "c", owner))
    told = [message for _, message in edge.core.told if isinstance(message, WillFired)]
    assert edge.core.counts.get("refused_will_fired", 0) == (0 if fires else 1)
    assert fires or [message.request for message in told] == [7]
    edge.turn()
    edge.turn(0.1)  # its route was requested
    assert [packet.topic_name for packet in reader.read()] == ["gone"] * fires


def test_permission_removal_during_open_refuses_the_will() -> None:
    """CONNACK follows the current rules (A3)."""
    edge = ruled(roles(device={"publish": ["up/#"]}))
    edge.held = {OpenSession}
    session = come(edge, principal("anna", "c"), will=Will("up/a", b"", 0, False, {}))
    edge.core.replace_rules(book(roles(device={"subscribe": ["up/#"]})))
    edge.held = set()
    edge.turn()
    assert [packet.reason_code for packet in session.read()] == [0x87]


def test_slow_reader_is_dropped_after_deadline() -> None:
    """P9, schedule A2: output from before the change is read within a second, or never."""
    edge = ruled(roles(device=BOTH))
    anna, bob = somebody(edge, "anna"), somebody(edge, "bob")
    writer = somebody(edge, "writer")
    for session in (anna, bob):
        session.subscribe("more/a")
        session.read()
    writer.publish("more/a", b"old")
    edge.turn()
    edge.core.replace_rules(book(roles(device=LESS, writer={"publish": ["#"]})))
    edge.turn()
    sweep = edge.core.sweep
    assert sweep.judged < edge.core.rights.changes and not anna.client.subscriptions
    assert edge.now < sweep.next_deadline() <= edge.now + 1.0, "waits for the readers, and for nothing else"
    assert topics(bob) == ["more/a"]
    edge.turn(1.1)
    assert sweep.judged == edge.core.rights.changes
    assert anna.client.conn.closed and not bob.client.conn.closed and topics(anna) == []
    assert edge.core.counts["disconnects_late_reader"] == 1


def test_ended_client_receives_no_earlier_output() -> None:
    """Its socket may be full of it."""
    edge = ruled(roles(device=BOTH))
    anna, writer = somebody(edge, "anna"), somebody(edge, "writer")
    anna.subscribe("more/a")
    anna.read()
    writer.publish("more/a", b"old")
    edge.turn()
    edge.core.logins.end(anna.client, "a test")
    edge.turn()
    assert anna.client.conn.closed
    assert [type(packet).__name__ for packet in anna.read()] == ["Disconnect"]


def test_route_built_before_partial_grant_is_checked_again() -> None:
    """P9: a message between the rule change and the subscriber's check may build a Route for a refused topic."""
    edge = ruled(acl("topic write #\nuser anna\ntopic read #"))
    anna, writer = somebody(edge, "anna"), somebody(edge, "")
    anna.subscribe("#")
    anna.read()
    edge.core.replace_rules(book(acl("topic write #\nuser anna\ntopic read #\ntopic deny a/x")))
    early = edge.core.routes.of_local(b"a/x")
    assert early.subs and not anna.client.partial, "nobody has looked at it yet"
    edge.core.hot.install_route(b"a/x", early)
    turns(edge)
    assert anna.client.partial == {"#"}
    anna.read()
    writer.publish("a/x")
    writer.publish("a/y")
    edge.turn()
    assert topics(anna) == ["a/y"]


@pytest.mark.parametrize("granted", ["down/#", "#"])
def test_durable_session_output_is_awaited_after_loss(granted: str) -> None:
    """P9, schedule A2: the edge knows only the filters of this connection."""
    edge = ruled(roles(device=BOTH))
    anna = somebody(edge, "anna", properties={17: 100})
    anna.subscribe("down/a")
    anna.read()
    edge.core.hot.write(anna.client.conn, bytes((0x30, 5, 0, 2)) + b"m/x")
    less: dict[str, object] = {"subscribe": [granted]}
    edge.core.replace_rules(book(roles(device=less)))
    edge.turn()
    sweep = edge.core.sweep
    assert (sweep.judged < edge.core.rights.changes) == (granted != "#")
    edge.turn(1.1)
    assert sweep.judged == edge.core.rights.changes
    assert anna.client.conn.closed == (granted != "#")


def test_unchanged_client_is_not_awaited() -> None:
    """A slow reader without a loss stays connected."""
    edge = ruled(roles(device=LESS, other=BOTH))
    anna = somebody(edge, "anna", properties={17: 100})
    edge.core.hot.write(anna.client.conn, bytes((0x30, 5, 0, 2)) + b"d/x")
    edge.core.replace_rules(book(roles(device=LESS, other=ALL)))
    edge.turn()
    assert edge.core.sweep.judged == edge.core.rights.changes and not anna.client.conn.closed


def test_busy_reader_is_awaited_up_to_its_mark() -> None:
    """Its output is never empty, but it reads: it stays connected."""
    edge = ruled(roles(device=BOTH))
    anna, writer = somebody(edge, "anna"), somebody(edge, "writer")
    anna.subscribe("more/a", "down/a")
    anna.read()
    writer.publish("more/a", b"old")
    edge.core.replace_rules(book(roles(device=LESS, writer={"publish": ["#"]})))
    edge.core.rights.admit(writer.client, edge.now)
    for _ in range(30):
        edge.core.hot.write(anna.client.conn, bytes((0x30, 5, 0, 2)) + b"d/x")
        edge.turn(0.1)
        assert anna.client.conn.closed is False
        edge.core.hot.take_output(anna.client.conn, 5)
    assert edge.core.sweep.judged == edge.core.rights.changes
