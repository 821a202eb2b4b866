"""Hostile names at an edge: they widen no permission and forge no line of the log or the audit."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from access.operators.audit_chain import GENESIS, make_line, verify
from conf.logs import configure_logs
from conf.node_settings import LogSettings
from edge.login.refusal_records import refusal_record
from edge.rights.sources import Sources
from mqtt.errors import LocalProtocolError
from tests.clients.hostile_names import HOSTILE_NAMES, LOOK_ALIKES
from tests.edge.edge_harness import Edge
from tests.edge.rights.ruled import acl, come, principal, roles, ruled
from tests.edge.rights.test_rules_of_clients import published, subscribed

VICTIMS = ("of/victim/x", "of//x", "of/a/x", "of/%u/x", "$SYS/x")
RULES: tuple[Sources, ...] = (
    roles(device={"publish": ["of/%u/#", "of/%c/x"], "subscribe": ["of/%u/#", "of/%c/+"]}),
    acl("user victim\ntopic of/victim/#\npattern of/%u/x\npattern of/%c/#"),
)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    configure_logs(LogSettings(level="debug", format="text", repeat_s=0.0), "edge-0", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def judge_log(stream: io.StringIO) -> None:
    for line in stream.getvalue().splitlines():
        assert line.isprintable() and " edge-0: " in line, line[:200]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("place", ["user", "client ID"])
@pytest.mark.parametrize("rules", RULES)
def test_hostile_name_reaches_no_foreign_topic(rules: Sources, place: str, name: str, log: io.StringIO) -> None:
    """A user, or a client identifier, that an authenticator accepted unchanged."""
    text = HOSTILE_NAMES[name]
    user, client_id = (text, "c") if place == "user" else ("nobody", text)
    edge = ruled(rules)
    try:
        session = come(edge, principal(user, client_id))
    except LocalProtocolError:
        return  # no packet has such a name
    answers = session.read()
    if not answers or answers[0].reason_code != 0:
        assert session.closed  # no client has such a name
    else:
        for topic in VICTIMS:
            if topic.startswith(f"of/{text}/"):
                continue  # its own
            assert published(session, topic) == 0x87, topic
            assert subscribed(session, topic) == [0x87], topic
    judge_log(log)


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_similar_names_are_different(name: str) -> None:
    """Names are compared by code points."""
    edge = ruled(acl("user victim\ntopic of/victim/#"))
    session = come(edge, principal(name, "c"))
    (connack,) = session.read()
    if connack.reason_code:
        assert connack.reason_code == 0x87  # no user can have it
        return
    assert published(session, "of/victim/x") == 0x87
    assert subscribed(session, "of/victim/#") == [0x87]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_refused_name_stays_within_its_line(name: str, log: io.StringIO) -> None:
    """In the audit and the log: one line each, and JSON preserves the name."""
    text = HOSTILE_NAMES[name]
    edge = Edge()
    session = edge.accept()
    session.client.client_id = text
    line, _ = make_line(refusal_record(session.client, 0x87, text, text), 1_800_000_000.0, GENESIS)
    assert verify([line]).broken_line == 0 and line.count(b"\n") <= 1 and line.strip().decode("ascii").isprintable()
    logging.getLogger("edge").warning("client %s refused", text, extra={"fields": {"user": text}})
    judge_log(log)
    assert len(log.getvalue().splitlines()) == 1


def test_token_as_user_name_is_not_logged() -> None:
    """Some brokers accept it there; a reader of the audit could use it."""
    session = Edge().accept()
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
    assert refusal_record(session.client, 0x86, "unknown to all", token).actor == "(a token)"
    assert refusal_record(session.client, 0x86, "unknown to all", "eyJ.b").actor == "eyJ.b"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_json_line_is_one_line(name: str) -> None:
    """Printable, and parsing restores the name."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    configure_logs(LogSettings(format="json", repeat_s=0.0), "edge-0", stream)
    try:
        logging.getLogger("edge").warning("refused", extra={"fields": {"user": HOSTILE_NAMES[name]}})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable() and json.loads(line)["user"] == HOSTILE_NAMES[name]
