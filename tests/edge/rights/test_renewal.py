"""An open client that proves itself again (AUTH 0x19) has the rights of that proof, and not of its CONNECT."""

import dataclasses

from msgspec.structs import replace

from access.identity.principal import Allow, Answer, Credentials, Job, Moment, Pass
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Edge, Session
from tests.edge.rights.ruled import book, principal, roles

METHOD: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "TOKEN"}


class Tokens:
    """A method whose proof is what a test says at the moment."""

    name = "tokens"
    methods: tuple[str, ...] = ("TOKEN",)

    def __init__(self) -> None:
        self.now = replace(principal("anna"), roles=("wide",))

    def begin(self, credentials: Credentials, moment: Moment) -> Answer:
        del moment
        return Allow(self.now) if credentials.method == "TOKEN" else Pass()

    def resume(self, credentials: Credentials, job: Job, result: object, moment: Moment) -> Answer:
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


def test_a_renewal_with_less_takes_what_it_lacks() -> None:
    """NIST: protect. Filters, messages, and what the loop keeps of decisions."""
    edge, tokens, session = come()
    session.publish("more/x", qos=1, identifier=3)
    assert [packet.reason_code for packet in session.read()] == [0x10]
    tokens.now = replace(tokens.now, roles=("narrow",))
    assert renew(edge, session) == [0]
    assert set(session.client.subscriptions) == {"down/a"}
    session.publish("more/x", qos=1, identifier=4)
    assert [packet.reason_code for packet in session.read()] == [0x87]


def test_a_renewal_with_more_gives_it_at_once() -> None:
    edge, tokens, session = come()
    for roles_now, code in ((("narrow",), 0x87), (("wide",), 0x10)):
        tokens.now = replace(tokens.now, roles=roles_now)
        assert renew(edge, session) == [0]
        session.publish("more/x", qos=1, identifier=5)
        assert [packet.reason_code for packet in session.read()] == [code]


def test_a_renewal_as_another_ends_the_connection() -> None:
    """Another user, another one of that name, or another client ID."""
    for change in ({"user": "bert"}, {"made": 7}, {"client_id": "d"}):
        edge, tokens, session = come()
        tokens.now = replace(tokens.now, **change)
        assert renew(edge, session) == [0x87] and session.closed
