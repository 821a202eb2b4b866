"""Users of a real cluster: added, given roles, disabled and banned on the command line, with real clients at two edges.

A revoked permission has no effect at any edge when the verb returns (P9).
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import paho.mqtt.client as paho
import pytest

from access.operators.audit_chain import verify
from access.operators.audit_file import read_lines
from conf.errors import ExitCode
from mqtt.codec import encode_packet
from mqtt.packets import Connect
from tests.clients.paho_outcome import Outcome
from tests.clients.terminal import at_terminal
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_login import TIMEOUT_S, code, come
from tests.forked_commands import run_command
from tests.patience import PATIENCE_S

PUBLISHER = shutil.which("mosquitto_pub") or ""
LISTENERS = {"word": {"tls": False, "allow_anonymous": False, "cluster_users": True, "cluster_roles": True}}


class Place(NamedTuple):
    """A cluster with two edges that go by its users and roles."""

    cluster: LocalCluster
    edges: tuple[ExtraEdge, ExtraEdge]

    def ports(self) -> list[int]:
        return [edge.port("word") for edge in self.edges]

    def order(self, *words: str, password: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a verb; a password goes in by descriptor 0."""
        more = [] if password is None else ["--password-fd", "0"]
        return run_command(*words, "--data", str(self.cluster.data), *more, given=password or "")

    def done(self, *words: str, password: str | None = None) -> None:
        result = self.order(*words, password=password)
        assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        tables = [{name: dict(table) for name, table in LISTENERS.items()} for _ in range(2)]
        with extra_edge(cluster, tables[0], "edge-8") as one, extra_edge(cluster, tables[1], "edge-9") as two:
            here = Place(cluster, (one, two))
            here.done("role", "put", "device", "--publish", "up/%u/#", "--subscribe", "down/#")
            yield here


def there(port: int, user: str, password: str) -> tuple[paho.Client, Outcome]:
    client, outcome = come(port, user=user, password=password)
    assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    return client, outcome


def test_added_user_gets_permissions_of_its_role(place: Place) -> None:
    """At both edges, as soon as the command returns."""
    place.done("user", "add", "ann", "--role", "device", password="good\n")
    for port in place.ports():
        assert code(port, user="ann", password="good") == 0
        assert code(port, user="ann", password="bad") == 134
        assert code(port, user="nobody", password="good") == 134
    if PUBLISHER:
        to = ("-V", "5", "-p", str(place.ports()[0]), "-q", "1", "-m", "x")
        publisher = [PUBLISHER, *to, "-u", "ann", "-P", "good"]
        for topic, exit_code in (("up/ann/x", 0), ("up/bob/x", 135)):
            refused_command = subprocess.run(
                [*publisher, "-t", topic],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert (exit_code == 0) == ("Not authorized" not in refused_command.stderr + refused_command.stdout), (
                topic,
                refused_command,
            )


def test_password_from_prompt(place: Place) -> None:
    """Typed twice, never shown; two different ones create no user, and a pipe is not a terminal."""
    command = [*place.cluster.command_line(), "user", "add", "tess", "--data", str(place.cluster.data)]
    code_differs, shown = at_terminal(command, ("password: ", "typed"), ("again: ", "typo"))
    assert code_differs == ExitCode.USAGE and "the passwords differ" in shown and "typ" not in shown
    piped = place.order("user", "add", "tess")
    assert piped.returncode == ExitCode.USAGE and "--password-fd" in piped.stderr
    code_same, shown = at_terminal(command, ("password: ", "typed word"), ("again: ", "typed word"))
    assert code_same == 0 and "typed" not in shown
    assert code(place.ports()[0], user="tess", password="typed word") == 0


def test_user_name_above_maximum_is_unknown(place: Place) -> None:
    """Routers reject such a request, so the edge does not send it: links stay open, and other users log in."""
    place.done("user", "add", "lea", password="good")
    before = [edge.events(place.cluster).get("users_not_told", 0) for edge in place.edges]
    for port in place.ports():
        for length in (257, 5_000, 60_000):
            assert code(port, user="x" * length, password="good") == 134
        assert code(port, user="lea", password="good") == 0
    assert [edge.events(place.cluster).get("users_not_told", 0) for edge in place.edges] == before


def test_disabled_user_disconnected_everywhere_when_command_returns(place: Place) -> None:
    """P9, and the text output."""
    place.done("user", "add", "bob", "--role", "device", password="good")
    clients = [there(port, "bob", "good") for port in place.ports()]
    began = time.monotonic()
    place.done("user", "disable", "bob")
    took_s = time.monotonic() - began
    for client, outcome in clients:
        assert outcome.gone.wait(PATIENCE_S) and outcome.ended == 135
        client.loop_stop()
    for port in place.ports():
        assert code(port, user="bob", password="good") == 135
    place.done("user", "enable", "bob")
    for port in place.ports():
        assert code(port, user="bob", password="good") == 0
    print(f"`user disable` returned in {took_s:.2f} s, its own start included")


def test_role_that_loses_filter_removes_subscription(place: Place) -> None:
    """No message of the topic arrives after the command, from any edge."""
    place.done("role", "put", "reader", "--subscribe", "news/#")
    place.done("role", "put", "writer", "--publish", "news/#")
    place.done("user", "add", "carl", "--role", "reader", password="good")
    place.done("user", "add", "wren", "--role", "writer", password="good")
    reader, _ = there(place.ports()[0], "carl", "good")
    writer, _ = there(place.ports()[1], "wren", "good")
    got, subscribed = threading.Event(), threading.Event()
    reader.on_message = lambda *_: got.set()
    reader.on_subscribe = lambda *_: subscribed.set()
    reader.subscribe("news/#", 1)
    assert subscribed.wait(TIMEOUT_S)
    writer.publish("news/a", "1", 1).wait_for_publish(TIMEOUT_S)
    assert got.wait(TIMEOUT_S)
    got.clear()
    place.done("role", "put", "reader", "--subscribe", "other/#")
    for _ in range(20):
        writer.publish("news/a", "2", 1).wait_for_publish(TIMEOUT_S)
    assert not got.wait(0.5)
    for client in (reader, writer):
        client.disconnect()
        client.loop_stop()


def test_bans_refuse_client_until_expiry_or_removal(place: Place) -> None:
    """A client ID; for a while, and until it is removed."""
    place.done("user", "add", "dora", "--role", "device", password="good")
    client, outcome = there(place.ports()[0], "dora", "good")
    place.done("ban", "add", "user", "dora", "--for", "1h", "--reason", "test")
    assert outcome.gone.wait(PATIENCE_S)
    client.loop_stop()
    for port in place.ports():
        assert code(port, user="dora", password="good") == 138
    listed = place.cluster.admin("ban", "list")
    assert [(ban["kind"], ban["value"], ban["reason"]) for ban in listed["bans"]] == [("user", "dora", "test")]
    place.done("ban", "del", "user", "dora")
    assert code(place.ports()[0], user="dora", password="good") == 0


def test_invalid_command_line_gets_one_line(place: Place) -> None:
    """One line, an exit code, and never a password or its record."""
    for words, exit_code, text in (
        (("user", "disable", "nobody-at-all"), 1, "nobody-at-all"),
        (("user", "add", "eve", "--role", "no-such-role", "--no-password"), 1, "role put"),
        (("user", "change", "ann"), 2, "--role"),
        (("ban", "add", "address", "10.0.0.0/8"), 1, "no IP address"),
        (("ban", "add", "user", "x", "--for", "soon"), 2, "10m"),
        (("role", "delete", "device"), 1, "device"),
        (("user", "add", "eve"), 2, "--password-file"),
        (("user", "change", "ann", "--limit", "speed=3"), 2, "subscribe_rate_max"),
        (("group", "put", "plant", "--limit", "sessions=3"), 2, "daily_bytes_max"),
        (("revoke", "xyz", "--issuer", "ab" * 32), 1, "hexadecimal"),
        (("revoke", "1f", "--issuer", "CN=ca"), 2, "64 hexadecimal digits"),
        (("revoke", "1f"), 2, "--certificate"),
        (("revoke", "1f", "--token", "x"), 2, "--token"),
        (("revoke", "--token", "x", "--until", "1"), 2, "--until"),
        (("revoke", "--certificate", f"{place.cluster.data}/tls/ca.pem", "--for", "1h"), 2, "valid for longer"),
    ):
        result = place.order(*words)
        assert result.returncode == exit_code, (words, result)
        assert text in result.stderr and "Traceback" not in result.stderr, (words, result.stderr)
    place.done("user", "change", "ann", "--limit", "subscribe_rate_max=7")
    assert place.cluster.admin("user", "show", "ann")["limits"] == {"subscribe_rate_max": 7}
    dry = place.cluster.admin("user", "disable", "ann", "--dry-run")
    assert dry["takes_from"] == {"users": ["ann"]}
    shown = place.cluster.command("user", "show", "ann", "--data", str(place.cluster.data))
    assert "argon2" not in shown.stdout and "device" in shown.stdout
    status = place.cluster.admin("policy", "status")
    assert status["settled"] is True and status["waits_for"] == []


def test_irreversible_change_lists_losses_and_requires_yes(place: Place) -> None:
    """A user with its roles, rules of a role, roles of a group: without --yes no state changes, nor after a dry run."""
    place.done("role", "put", "short", "--publish", "short/%u")
    place.done("group", "put", "shift", "--role", "short")
    place.done("user", "add", "ulf", "--group", "shift", "--role", "device", password="good")
    client, outcome = there(place.ports()[0], "ulf", "good")
    for words, shown in (
        (("user", "delete", "ulf"), ("shift", "device", "takes_from")),
        (("group", "delete", "shift"), ()),
        (("role", "delete", "short"), ()),
    ):
        unsure = place.order(*words, "-o", "json")
        if not shown:
            assert unsure.returncode == 1 and "--yes" not in unsure.stderr, "somebody has it"
            continue
        assert unsure.returncode == ExitCode.USAGE and "with --yes" in unsure.stderr
        assert all(one in unsure.stdout for one in shown), unsure.stdout
        place.done(*words, "--dry-run")
    assert place.cluster.admin("user", "show", "ulf")["roles"] == ["device"] and not outcome.gone.is_set()
    place.done("user", "delete", "ulf", "--yes")
    assert outcome.gone.wait(PATIENCE_S) and outcome.ended == 135
    client.loop_stop()
    for words, rest in ((("group", "delete", "shift"), "short"), (("role", "delete", "short"), "short/%u")):
        unsure = place.order(*words, "-o", "json")
        assert unsure.returncode == ExitCode.USAGE and rest in unsure.stdout, unsure
        place.done(*words, "--yes")
        assert place.order(words[0], "show", words[2]).returncode == 1


def test_users_survive_router_restart(place: Place) -> None:
    """The policy is in the log: kill the router that has it."""
    place.done("user", "add", "fay", "--role", "device", password="good")
    place.cluster.kill("router-0")
    place.cluster.wait_for(lambda: _answers(place), "a router again")
    assert place.cluster.admin("user", "show", "fay")["user"] == "fay"
    deadline = time.monotonic() + TIMEOUT_S
    while (got := code(place.ports()[0], user="fay", password="good")) != 0:
        assert time.monotonic() < deadline, got
    assert code(place.ports()[1], user="bob", password="wrong") == 134


def _answers(place: Place) -> bool:
    return place.cluster.command("policy", "status", "--data", str(place.cluster.data)).returncode == 0


def test_audit_records_changes_and_refusals(place: Place) -> None:
    """Lines of the leader and of an edge, with an intact chain, certificate and address."""
    place.done("user", "add", "olga", "--role", "device", password="good")
    place.done("user", "disable", "olga")
    assert place.order("user", "disable", "nobody-at-all").returncode == 1
    assert code(place.ports()[0], user="olga", password="good") == 135

    def of_edge() -> list[dict[str, object]]:
        found = audited(place.cluster.data / "edge-8")
        return [line for line in found if line["kind"] == "login" and line.get("actor") == "olga"]

    place.cluster.wait_for(lambda: bool(of_edge()), "the edge's line")
    assert of_edge()[0]["outcome"] == "refused" and str(of_edge()[0]["reason"]).startswith("0x87")
    routers = [line for folder in place.cluster.data.glob("router-*") for line in audited(folder)]
    verbs = [line for line in routers if line["kind"] == "verb" and line["verb"] == "user disable"]
    olga, nobody = verbs[-2:]
    assert (olga["outcome"], olga["role"], olga["address"]) == ("done", "admin", "127.0.0.1")
    assert olga["arguments"] == {"user": "olga", "dry_run": False} and olga["serial"] and olga["epoch"]
    assert nobody["outcome"] == "failed" and "nobody-at-all" in str(nobody["reason"])
    assert "argon2id" not in json.dumps(routers)


def audited(folder: Path) -> list[dict[str, object]]:
    """Return the lines of a node's audit, which is whole."""
    lines = list(read_lines(folder / "audit.jsonl"))
    verdict = verify(lines)
    assert not verdict.broken_line, verdict
    return [json.loads(line) for line in lines]


def test_client_is_kicked_at_any_edge(place: Place) -> None:
    """By its client ID, without naming the edge; it may reconnect."""
    place.done("user", "add", "kim", "--role", "device", password="good")
    client, outcome = come(place.ports()[1], user="kim", password="good", client_id="kim-1")
    assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    dry = place.order("client", "kick", "kim-1", "--dry-run", "-o", "json")
    assert [row["node"] for row in json.loads(dry.stdout)["nodes"]] == ["edge-9"] and not outcome.gone.is_set()
    place.done("client", "kick", "kim-1")
    assert outcome.gone.wait(PATIENCE_S) and outcome.ended == 0x98
    client.loop_stop()
    missing = place.order("client", "kick", "kim-1")
    assert missing.returncode == 1 and "no edge has a connection" in missing.stderr
    assert code(place.ports()[1], user="kim", password="good") == 0


def test_reload_at_one_node_and_at_all(place: Place) -> None:
    """Exit code 1 and the file's name if one refuses; the others have reloaded, and both are in the audit."""
    result = place.order("reload", "-o", "json")
    assert result.returncode == 0, result.stderr
    nodes = {row["node"] for row in json.loads(result.stdout)["nodes"]}
    assert {"router-0", "edge-0", "edge-8", "edge-9"} < nodes and any(node.startswith("storage") for node in nodes)
    config = place.cluster.data / "edge-8" / "edge.toml"
    whole = config.read_text()
    config.write_text(whole + "\nnonsense = 1\n")
    refused = place.order("reload", "--node", "edge-8")
    assert refused.returncode == 1 and "edge-8" in refused.stderr and "nonsense" in refused.stderr
    config.write_text(whole)
    place.done("reload", "--node", "edge-8", "--dry-run")
    place.done("reload", "--node", "edge-8")
    assert [line["outcome"] for line in audited(place.cluster.data / "edge-8") if line["kind"] == "reload"][-2:] == [
        "refused",
        "done",
    ]
    assert place.order("reload", "--node", "edge-77").returncode == 1


def test_revocation_waits_until_stopped_edge_is_fenced(place: Place) -> None:
    """P9: the verb outlasts the edge's lease and its ``fence_close_s``, and returns as done. Afterwards the resumed
    edge
    accepts no login, publish or subscription by the old permission, and writes no delivery: neither of bytes received
    while it was stopped, nor of later ones. Runs last: the map has removed the resumed incarnation, and no
    supervisor restarts this edge.
    """
    place.done("role", "put", "watcher", "--publish", "down/#", "--subscribe", "up/#")
    place.done("user", "add", "paul", "--role", "device", password="good")
    place.done("user", "add", "wanda", "--role", "watcher", password="good")
    awake, stopped = place.ports()
    paul, ended = there(stopped, "paul", "good")
    wanda, _ = there(awake, "wanda", "good")
    delivered: dict[str, list[bytes]] = {"paul": [], "wanda": []}
    subscribed = threading.Event()
    for client, name, topic in ((paul, "paul", "down/#"), (wanda, "wanda", "up/#")):
        client.on_message = lambda _client, _data, message, to=delivered[name]: to.append(message.payload)
        client.on_subscribe = lambda *_: subscribed.set()
        subscribed.clear()
        client.subscribe(topic, 1)
        assert subscribed.wait(TIMEOUT_S)
    edge = place.edges[1].process
    os.kill(edge, signal.SIGSTOP)
    try:
        early = waiting_login(stopped)
        paul.publish("up/paul/late", b"of before", 0)
        paul.publish("up/paul/late", b"of before", 1)
        paul.subscribe("down/more")
        result = place.order("user", "disable", "paul")
        assert (result.returncode, result.stderr) == (ExitCode.OK, "")
        assert wanda.publish("down/x", b"of after", 1).rc == 0
    finally:
        os.kill(edge, signal.SIGCONT)
    late = waiting_login(stopped)
    assert ended.gone.wait(PATIENCE_S) and ended.ended != 0
    for connection in (early, late):
        assert not lets_in(connection)
    os.waitid(os.P_PID, edge, os.WEXITED | os.WNOWAIT)  # it was declared dead
    subscribed.clear()
    wanda.publish("down/x", b"of after", 1).wait_for_publish(TIMEOUT_S)
    wanda.subscribe("up/#", 1)  # answered behind all that was on the way to her
    assert subscribed.wait(TIMEOUT_S)
    assert delivered == {"paul": [], "wanda": []}
    assert code(awake, user="paul", password="good") == 135
    for client in (paul, wanda):
        client.disconnect()
        client.loop_stop()


def waiting_login(port: int) -> socket.socket | None:
    """Send the CONNECT of paul without reading the answer; None if no listener is open."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    except ConnectionError:
        return None
    with contextlib.suppress(OSError):
        connection.sendall(encode_packet(Connect("paul-2", protocol_version=4, username="paul", password=b"good"), 4))
    return connection


def lets_in(connection: socket.socket | None) -> bool:
    """Return whether a CONNACK of success comes, before the end of the connection or a CONNACK of another kind."""
    if connection is None:
        return False
    with connection:
        try:
            answer = connection.recv(4)
        except ConnectionError:
            return False
    return len(answer) == 4 and answer[0] == 0x20 and answer[3] == 0
