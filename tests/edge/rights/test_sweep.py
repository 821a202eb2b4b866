"""New rules at live clients: what was granted before is taken back, and what waits is judged at the write."""

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
def test_filters_that_new_rules_do_not_grant_are_taken(durable: bool) -> None:
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


def test_a_user_gets_the_roles_that_a_new_file_gives_it_before_the_sweep() -> None:
    edge = ruled(acl("user anna\ntopic write a"))
    anna = somebody(edge, "anna")
    for text, may in (("a", ["a"]), ("b", ["b"]), ("c", [])):
        edge.core.replace_rules(book(acl(f"user anna\ntopic write {text}")))
        assert [topic for topic in ("a", "b") if edge.core.rights.may_publish(anna.client, topic, 0, False)] == may


def test_a_client_of_a_section_that_is_gone_has_nothing() -> None:
    edge = ruled(acl("topic read x\nuser anna\ntopic read down"))
    anna = somebody(edge, "anna")
    anna.subscribe("down")
    anna.read()
    edge.core.replace_rules(book(acl("topic read x")))
    assert not edge.core.rights.may_receive(anna.client, "down")
    turns(edge)
    assert not anna.client.subscriptions


def test_a_client_of_a_section_that_is_new_has_it() -> None:
    """A user whom the former file did not name has other names of rules now, and so another class."""
    edge = ruled(acl("topic read x"))
    anna = somebody(edge, "anna")
    assert not edge.core.rights.may_publish(anna.client, "up", 0, retain=False)
    edge.core.replace_rules(book(acl("topic read x\nuser anna\ntopic write up")))
    assert edge.core.rights.may_publish(anna.client, "up", 0, retain=False)


def test_subscribers_of_a_topic_are_judged_again_where_parts_are_granted() -> None:
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


def test_steps_that_come_faster_than_a_pass_do_not_begin_it_anew() -> None:
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


def test_a_listener_that_the_rules_do_not_know_gives_nothing() -> None:
    unknown, known = RuleBook({"other": NO_RULES}), book(Sources(roles(any=ALL).roles, anonymous=("any",)))
    for rules, may in ((unknown, False), (known, True)):
        session = somebody(Edge(rules=rules), "")
        session.subscribe("#")
        assert [packet.reason_codes for packet in session.read()] == [[2 if may else 0x87]]
        session.publish("a", qos=1, identifier=1)
        (answer,) = (packet for packet in session.read() if not hasattr(packet, "payload"))
        assert (answer.reason_code < 0x80) == may


@pytest.mark.parametrize(("owner", "fires"), [("anna", True), ("bert", False), ("", False)])
def test_a_will_that_fires_is_judged_by_its_owner(owner: str, fires: bool) -> None:
    """NIST: protect."""
    edge = ruled(acl("user anna\ntopic write gone\nuser bert\ntopic write else\nuser reader\ntopic read #"))
    reader = somebody(edge, "reader", "reader")
    reader.subscribe("gone")
    reader.read()
    edge.core.publishing.fire_will("s0", FireWill(7, 0, 1, 3, SessionWill("gone", b"x", 0, False), "c", owner))
    told = [message for _, message in edge.core.told if isinstance(message, WillFired)]
    assert edge.core.counts.get("refused_will_fired", 0) == (0 if fires else 1)
    assert fires or [message.request for message in told] == [7]
    edge.turn()
    edge.turn(0.1)  # its route was asked for
    assert [packet.topic_name for packet in reader.read()] == ["gone"] * fires


def test_rights_that_went_while_the_session_was_opened_refuse_its_will() -> None:
    """The CONNACK is of the rules of now (A3)."""
    edge = ruled(roles(device={"publish": ["up/#"]}))
    edge.held = {OpenSession}
    session = come(edge, principal("anna", "c"), will=Will("up/a", b"", 0, False, {}))
    edge.core.replace_rules(book(roles(device={"subscribe": ["up/#"]})))
    edge.held = set()
    edge.turn()
    assert [packet.reason_code for packet in session.read()] == [0x87]


def test_a_slow_reader_s_old_output_is_waited_for_and_then_dropped() -> None:
    """P9, schedule A2: what was written before the rules moved is read within a second, or never."""
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


def test_a_client_that_is_ended_gets_nothing_of_before() -> None:
    """Its socket may be full of what it must not read any more."""
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


def test_a_route_that_was_made_before_a_filter_became_a_part_is_looked_at_again() -> None:
    """P9: between new rules and the look at its subscriber a message may have made the Route of a refused topic."""
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
def test_old_output_of_a_stored_session_is_waited_for_where_it_lost_something(granted: str) -> None:
    """P9, schedule A2: its filters stand at its partition, and the edge knows those of this connection alone."""
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


def test_a_client_whose_rules_are_as_they_were_is_not_waited_for() -> None:
    """A slow reader of whom nothing is taken stays, however little it may."""
    edge = ruled(roles(device=LESS, other=BOTH))
    anna = somebody(edge, "anna", properties={17: 100})
    edge.core.hot.write(anna.client.conn, bytes((0x30, 5, 0, 2)) + b"d/x")
    edge.core.replace_rules(book(roles(device=LESS, other=ALL)))
    edge.turn()
    assert edge.core.sweep.judged == edge.core.rights.changes and not anna.client.conn.closed


def test_a_reader_that_is_never_idle_is_waited_for_as_far_as_its_old_output_goes() -> None:
    """Its output is never empty, and it reads: nobody closes it."""
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
