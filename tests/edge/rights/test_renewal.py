"""Re-authentication (AUTH 0x19) replaces the rights of an open client."""

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace

from access.identity.principal import Allow, Answer, Credentials, Job, Pass, TimePoint
from edge.rights.sweep import FILTERS_PER_ITERATION
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import book, principal, roles

METHOD: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "TOKEN"}


class Tokens:
    """A method with a proof that the test sets."""

    name = "tokens"
    methods: tuple[str, ...] = ("TOKEN",)

    def __init__(self) -> None:
        self.now = replace(principal("anna"), roles=("wide",))

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        del moment
        return Allow(self.now) if credentials.method == "TOKEN" else Pass()

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        raise AssertionError(credentials, job, result, moment)


def come() -> tuple[Edge, Tokens, Session]:
    tokens = Tokens()
    wide: dict[str, object] = {"subscribe": ["down/#", "more/#"], "publish": ["up/#", "more/#"]}
    narrow: dict[str, object] = {"subscribe": ["down/#"], "publish": ["up/#"]}
    rules = roles(wide=wide, narrow=narrow)
    edge = Edge(rules=book(dataclasses.replace(rules, authenticated=())), steps=[tokens])
    session = edge.accept()
    session.send(Connect("c", properties=METHOD))
    session.read()
    session.subscribe("down/a", "more/a")
    session.read()
    return edge, tokens, session


def renew(edge: Edge, session: Session) -> list[int]:
    session.send(Auth(0x19, METHOD))
    edge.turn()
    return [packet.reason_code for packet in session.read() if hasattr(packet, "reason_code")]


def test_reauthentication_with_fewer_permissions_revokes() -> None:
    """Filters, messages, and cached verdicts."""
    edge, tokens, session = come()
    session.publish("more/x", qos=1, identifier=3)
    assert [packet.reason_code for packet in session.read()] == [0x10]
    tokens.now = replace(tokens.now, roles=("narrow",))
    assert renew(edge, session) == [0]
    assert set(session.client.subscriptions) == {"down/a"}
    session.publish("more/x", qos=1, identifier=4)
    assert [packet.reason_code for packet in session.read()] == [0x87]


def test_reauthentication_with_more_permissions_applies_at_once() -> None:
    edge, tokens, session = come()
    for roles_now, code in ((("narrow",), 0x87), (("wide",), 0x10)):
        tokens.now = replace(tokens.now, roles=roles_now)
        assert renew(edge, session) == [0]
        session.publish("more/x", qos=1, identifier=5)
        assert [packet.reason_code for packet in session.read()] == [code]


def test_reauthentication_as_other_user_disconnects() -> None:
    """Another user, a recreated user of that name, or another client ID."""
    for change in ({"user": "bert"}, {"made": 7}, {"client_id": "d"}):
        edge, tokens, session = come()
        tokens.now = replace(tokens.now, **change)
        assert renew(edge, session) == [0x87] and session.closed


def test_reauthentication_is_rate_limited() -> None:
    """Each runs the chain, compiles rules and authorizes all filters: four a second, with a burst of one second."""
    edge, _, session = come()
    for _ in range(200):
        session.send(Auth(0x19, METHOD))
    answered = []
    for _ in range(10):
        edge.turn(0.1)
        answered.append(sum(isinstance(packet, Auth) for packet in session.read()))
    assert 4 <= sum(answered) <= 9
    assert not session.closed


def test_repeated_reauthentication_leaves_no_expiries() -> None:
    """Only the expiry of the last proof is kept."""
    edge, tokens, session = come()
    for number in range(200):
        tokens.now = replace(tokens.now, expires_at_utc=1e12 + number)
        assert renew(edge, session) == [0]
        edge.turn(1.0)
    assert edge.core.logins.ends <= 70


def with_many_filters(edge: Edge, session: Session) -> None:
    for first in range(0, 900, 100):
        session.subscribe(*(f"more/{first + number}" for number in range(100)))
    edge.turn()
    session.read()


def turns_until(edge: Edge, session: Session, is_over: Callable[[], bool]) -> int:
    """Return the number of iterations; none exceeds its bound of filters."""
    for turns in range(100):
        if is_over():
            return turns
        before = len(session.client.subscriptions)
        edge.turn()
        session.read()
        assert before - len(session.client.subscriptions) <= FILTERS_PER_ITERATION
    raise AssertionError("not over")


def test_many_filters_are_checked_over_several_iterations() -> None:
    """After a re-authentication and in a pass; the pass continues meanwhile."""
    edge, tokens, session = come()
    with_many_filters(edge, session)
    tokens.now = replace(tokens.now, roles=("narrow",))
    session.send(Auth(0x19, METHOD))
    given = edge.core.rights.renewals
    turns = turns_until(edge, session, lambda: edge.core.sweep.is_applied(0, given))
    assert set(session.client.subscriptions) == {"down/a"} and turns > 3


def test_pass_checks_many_filters_over_several_iterations() -> None:
    edge, _, session = come()
    with_many_filters(edge, session)
    edge.core.replace_rules(book(roles(wide={"subscribe": ["down/#"]})))
    turns = turns_until(edge, session, lambda: edge.core.sweep.judged == edge.core.rights.changes)
    assert set(session.client.subscriptions) == {"down/a"} and turns > 3


def test_reauthentications_do_not_delay_a_pass() -> None:
    """A pass gets half of an iteration's filters."""
    edge, tokens, session = come()
    with_many_filters(edge, session)
    other = edge.client("other", properties=METHOD)
    other.subscribe("more/a")
    edge.core.replace_rules(book(roles(wide={"subscribe": ["down/#"]})))
    for _ in range(40):
        edge.core.logins.give(session.client, tokens.now)
        edge.turn()
        session.read()
        other.read()
    assert edge.core.sweep.judged == edge.core.rights.changes


def test_rights_replaced_while_queued_keep_the_queue_position() -> None:
    """The check then uses the latest rights."""
    edge, tokens, session = come()
    with_many_filters(edge, session)
    tokens.now = replace(tokens.now, roles=("narrow",))
    session.send(Auth(0x19, METHOD))
    first = edge.core.rights.renewals
    edge.turn()
    assert not edge.core.sweep.is_applied(0, first)
    edge.core.logins.give(session.client, tokens.now)
    edge.turn()
    turns_until(edge, session, lambda: edge.core.sweep.is_applied(0, first))
    assert set(session.client.subscriptions) == {"down/a"}
