"""Clients authenticated by a real HTTP server in its own process: it allows, denies, lies, hangs and dies."""

import contextlib
import json
import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqtt.properties import PropertyId
from tests.clients.blocking import BlockingClient
from tests.clients.http_child import HttpChild, http_child
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.flooded_logins import beside, logged_in, p99_of_pair
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_login import TIMEOUT_S, code, come
from tests.patience import PATIENCE_S

ANSWERS = """
class Answers(Quiet):
    def do_POST(self):
        asked = json.loads(self.body())
        said = json.loads((folder / "said").read_text())
        mode = said.get(asked["username"], {"body": {"result": "ignore"}})
        with (folder / "asked").open("a") as log:
            log.write(json.dumps(asked) + "\\n")
        with (folder / "paths").open("a") as log:
            log.write(self.path + "\\n")
        self.send_response(mode.get("status", 200))
        body = json.dumps(mode.get("body", {})).encode()
        length = mode.get("length", len(body))
        own = {"Content-Type": "application/json", "Content-Length": str(length)}
        for name, value in {**own, **mode.get("headers", {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if mode.get("drip"):
            for byte in body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(1)
        else:
            self.wfile.write(body)
        sent = len(body)
        while sent < length and not mode.get("cut"):
            sent += self.wfile.write(b" " * 65536)
        if mode.get("cut"):
            self.close_connection = True
"""
ALLOW: dict[str, Any] = {"result": "allow"}
RULES = [{"permission": "allow", "action": "publish", "topic": "up/%u"}]


class Place(NamedTuple):
    """An edge that asks a server, and the server's folder."""

    cluster: LocalCluster
    edge: ExtraEdge
    folder: Path
    server: HttpChild

    @property
    def port(self) -> int:
        return self.edge.port("asks")

    def says(self, **modes: dict[str, Any]) -> None:
        (self.folder / "next").write_text(json.dumps(modes))
        (self.folder / "next").replace(self.folder / "said")

    def asked(self) -> list[dict[str, Any]]:
        path = self.folder / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asked_paths(self) -> list[str]:
        return (self.folder / "paths").read_text().splitlines()

    def is_open(self) -> bool:
        text = self.cluster.metrics_at(self.edge.addresses["metrics"])
        return 'stratamq_http_breaker_open{listener="asks"} 1' in text

    def outcomes(self) -> dict[str, float]:
        """Return how many logins the listener answered how."""
        text = self.cluster.metrics_at(self.edge.addresses["metrics"])
        found = re.findall(r'^stratamq_http_logins_total\{.*listener="asks".*outcome="(\w+)".*\} (\S+)', text, re.M)
        return {outcome: float(count) for outcome, count in found}

    def closed(self) -> None:
        """Wait until the circuit breaker is closed."""
        deadline = time.monotonic() + TIMEOUT_S
        while (got := code(self.port, user=f"nobody-{time.monotonic()}", password="x")) != 0x86:
            assert got == 0x88 and time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        folder = cluster.data / "answers"
        folder.mkdir()
        (folder / "said").write_text("{}")
        roles = cluster.data / "roles.toml"
        roles.write_text('[roles.boss]\npublish = ["boss/#"]\n')
        with http_child(ANSWERS, str(folder)) as server:
            shared = {"tls": False, "allow_anonymous": False, "http_url": server.url("/auth")}
            tables = {
                "asks": {**shared, "http_acl": True},
                "boss": {**shared, "roles_file": str(roles), "http_superuser_role": "boss"},
                "plain": {**shared, "roles_file": str(roles)},
            }
            with extra_edge(cluster, tables) as edge:
                yield Place(cluster, edge, folder, server)


def publishes(port: int, user: str, topic: str) -> int:
    """Return the code of a PUBACK."""
    client, outcome = come(port, user=user, password="x")
    answered, codes = threading.Event(), []

    def script(*arguments: Any) -> None:
        codes.append(arguments[3].value)
        answered.set()

    client.on_publish = script
    assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    client.publish(topic, "m", 1)
    assert answered.wait(TIMEOUT_S)
    client.disconnect()
    client.loop_stop()
    return int(codes[0])


def test_allow_deny_and_ignore(place: Place) -> None:
    """The server receives EMQX's request; a user unknown to it is unknown."""
    place.says(ann={"body": ALLOW}, bob={"body": {"result": "deny"}}, eve={"status": 204, "length": 0})
    assert code(place.port, user="ann", password="secret") == 0
    assert code(place.port, user="bob", password="x") == 0x86
    assert code(place.port, user="nobody", password="x") == 0x86
    asked = place.asked()[0]
    assert (asked["username"], asked["password"], asked["listener"]) == ("ann", "secret", "asks")
    assert asked["peerhost"] == "127.0.0.1"
    before = len(place.asked())
    assert code(place.port) == 0x87 and len(place.asked()) == before, "nobody is asked about a client without a name"


def test_only_rules_of_http_answer_apply(place: Place) -> None:
    """With http_acl the answer's rules; without rules all is denied; is_superuser gives the listener's role."""
    place.says(
        ann={"body": {**ALLOW, "acl": RULES}},
        bare={"body": ALLOW},
        root={"body": {**ALLOW, "is_superuser": True}},
        odd={"body": {**ALLOW, "acl": [{"permission": "allow", "action": "all", "topic": "#", "more": 1}]}},
    )
    assert publishes(place.port, "ann", "up/ann") in (0, 0x10)
    assert publishes(place.port, "ann", "up/bob") == 0x87
    assert publishes(place.port, "bare", "up/bare") == 0x87
    assert publishes(place.port, "root", "boss/x") == 0x87
    assert publishes(place.edge.port("plain"), "root", "boss/x") == 0x87
    assert publishes(place.edge.port("boss"), "root", "boss/x") in (0, 0x10)
    assert publishes(place.edge.port("boss"), "root", "other") == 0x87
    assert code(place.port, user="odd", password="x") == 0x88, "rules that are none are no rules"
    assert code(place.edge.port("plain"), user="ann", password="x") == 0x88, "rules where the listener takes none"


def test_connection_ends_at_time_of_answer(place: Place) -> None:
    for life_s in (2, 10, 60):  # longer on a machine that needs so long until it is connected
        place.says(ann={"body": {**ALLOW, "expire_at": time.time() + life_s}})
        client, outcome = come(place.port, user="ann", password="x")
        assert outcome.wait(TIMEOUT_S)
        if outcome.code == 0:
            break
        client.loop_stop()
    assert outcome.code == 0
    assert outcome.gone.wait(TIMEOUT_S) and outcome.ended == 0x87
    client.loop_stop()


def test_answers_cached_until_policy_change_or_reload(place: Place) -> None:
    kept = {"body": ALLOW, "headers": {"Cache-Control": "max-age=300"}}
    place.says(cora=kept)

    def questions() -> int:
        return sum(asked["username"] == "cora" for asked in place.asked())

    for _ in range(3):
        assert code(place.port, user="cora", password="x") == 0
    assert questions() == 1
    assert code(place.port, user="cora", password="other") == 0 and questions() == 2
    place.cluster.admin("user", "add", "dan", "--no-password")
    assert code(place.port, user="cora", password="x") == 0 and questions() == 2
    place.cluster.admin("user", "disable", "dan")
    assert code(place.port, user="cora", password="x") == 0 and questions() == 3
    os.kill(place.edge.process, signal.SIGHUP)
    deadline = time.monotonic() + TIMEOUT_S
    while questions() == 3:
        assert code(place.port, user="cora", password="x") == 0 and time.monotonic() < deadline


def test_c7_rules_removed_from_answer_stop_delivery_to_absent_client(place: Place) -> None:
    """Messages queued by a rule of the former answer are not delivered, and its filter is removed."""

    def answers(*topics: str) -> dict[str, Any]:
        allowed = [{"permission": "allow", "action": "all", "topic": topic} for topic in topics]
        return {"body": {**ALLOW, "acl": allowed}, "headers": {"Cache-Control": "max-age=0"}}

    def back(user: str = "away") -> BlockingClient:
        client = BlockingClient(place.port, timeout_s=PATIENCE_S)
        expiry = {PropertyId.SESSION_EXPIRY_INTERVAL: 600}
        client.open(user, username=user, password=b"x", clean_start=False, properties=expiry)
        return client

    place.says(away=answers("a/#", "b/#", "end"), sender=answers("#"))
    with contextlib.closing(back()) as client:
        client.subscribe("a/#", "b/#", "end")
        client.disconnect()
    with contextlib.closing(back("sender")) as publisher:
        for topic in ("a/1", "b/1", "end"):
            assert publisher.publish(topic) in (0, 0x10)
        place.says(away=answers("b/#", "end"))
        with contextlib.closing(back()) as client:
            assert [client.take().topic_name for _ in range(2)] == ["b/1", "end"]
            client.disconnect()
        place.says(away=answers("a/#", "b/#", "end"))
        for topic in ("a/2", "end"):
            publisher.publish(topic)
    with contextlib.closing(back()) as client:
        assert client.take().topic_name == "end"


def test_hostile_answers_refused_without_effect_on_others(place: Place) -> None:
    """A redirect to loopback, 1 GB, a byte a second, half an answer, another type: 0x88; connected clients stay."""
    place.says(
        ann={"body": {**ALLOW, "acl": RULES}},
        moved={"status": 307, "headers": {"Location": place.server.url("/other")}, "body": ALLOW},
        huge={"body": ALLOW, "length": 1 << 30},
        slow={"body": {**ALLOW, "more": "x" * 1000}, "drip": True},
        half={"body": ALLOW, "length": 100, "cut": True},
        html={"body": ALLOW, "headers": {"Content-Type": "text/html"}},
        lies={"body": {"result": "yes"}},
    )
    stands, standing = come(place.port, user="ann", password="x")
    assert standing.wait(TIMEOUT_S) and standing.code == 0
    for name in ("moved", "huge", "slow", "half", "html", "lies"):
        client, outcome = come(place.port, user=name, password="x")
        assert outcome.wait(TIMEOUT_S) and outcome.code == 0x88, name
        client.loop_stop()
    assert set(place.asked_paths()) == {"/auth"}, "no redirect is followed"
    stands.publish("up/ann", "m", 1).wait_for_publish(TIMEOUT_S)
    assert not standing.gone.is_set()
    stands.disconnect()
    stands.loop_stop()
    place.closed()


def test_hung_server_opens_breaker(place: Place) -> None:
    """0x88 after the timeout, then at once while the breaker is open; recovers in seconds; connected clients stay."""
    place.closed()
    place.says(ann={"body": {**ALLOW, "acl": RULES}})
    stands, standing = come(place.port, user="ann", password="x")
    assert standing.wait(TIMEOUT_S) and standing.code == 0
    place.server.stand_still()
    try:
        clients = [come(place.port, user=f"u{number}", password="x") for number in range(8)]
        for client, outcome in clients:
            assert outcome.wait(TIMEOUT_S) and outcome.code == 0x88
            client.loop_stop()
        assert place.is_open()
        before = place.outcomes()
        while place.outcomes().get("breaker_open", 0) == before.get("breaker_open", 0):  # each fifth second one probes
            assert code(place.port, user="ann", password="x") == 0x88
        stands.publish("up/ann", "m", 1).wait_for_publish(TIMEOUT_S)
    finally:
        place.server.go_on()
    place.closed()
    assert code(place.port, user="ann", password="x") == 0
    assert not place.is_open() and not standing.gone.is_set()
    stands.disconnect()
    stands.loop_stop()


@pytest.mark.slow
def test_latency_of_connected_clients_while_server_hangs(place: Place) -> None:
    """P99 of a pair: at most 1.2 times its value beside the same logins while the server answers."""
    seconds, rate = 15.0, 40
    rules = [{"permission": "allow", "action": "all", "topic": "pair/#"}]
    may = {"body": {**ALLOW, "acl": rules}}
    place.says(ann=may, **{f"u{number}": may for number in range(100)})
    found: dict[str, float] = {}
    for turn in range(3):
        for name in ("answers", "hangs"):
            place.closed()
            key = f"{name}{turn}"
            pair = logged_in(place.port, f"{key}-w"), logged_in(place.port, f"{key}-r")
            if name == "hangs":
                place.server.stand_still()
            try:
                with beside("login_flood", place.port, rate, int(seconds) + 2, 50):
                    found[key] = p99_of_pair(pair, seconds, key)
            finally:
                place.server.go_on()
    place.closed()
    calm = p99_of_pair((logged_in(place.port, "calm-w"), logged_in(place.port, "calm-r")), seconds, "calm")
    answers, hangs = (statistics.median(found[f"{name}{turn}"] for turn in range(3)) for name in ("answers", "hangs"))
    print(
        f"P99 {calm:.2f} ms without logins, {answers:.2f} beside {rate}/s that are answered, {hangs:.2f} beside a hang"
    )
    assert hangs < 1.2 * answers
