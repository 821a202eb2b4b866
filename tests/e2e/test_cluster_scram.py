"""SCRAM-SHA-256 of the cluster's users at two edges of a real cluster, with users made on the command line."""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.clients.blocking import BlockingClient
from tests.clients.paho_auth import PahoAuth
from tests.clients.scram_exchange import Shown, client_final, client_first, prove
from tests.e2e.extra_edge import extra_edge
from tests.e2e.local_cluster import local_cluster
from tests.e2e.test_cluster_users import Place

LISTENER = {
    "tls": False,
    "allow_anonymous": False,
    "cluster_users": True,
    "scram_without_tls": True,
    "authentication": ["scram"],
}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        secret = cluster.data / "scram.secret"
        secret.touch(0o600)
        secret.write_bytes(os.urandom(32))
        room = {"scram_secret_file": str(secret)}
        tables = [{"word": dict(LISTENER)} for _ in range(2)]
        with extra_edge(cluster, tables[0], "edge-8", **room) as one, extra_edge(cluster, tables[1], **room) as two:
            yield Place(cluster, (one, two))


def shown(port: int, user: str, password: str) -> Shown:
    client = BlockingClient(port)
    try:
        return prove(client, f"{user}-{port}", user, password)
    finally:
        client.socket.close()


def test_scram_user_authenticates_at_each_edge(place: Place) -> None:
    """The right password, wrong ones, and one without a verifier."""
    place.done("user", "add", "ann", "--scram", password="good")
    place.done("user", "add", "mute", password="good")
    users = {name: place.cluster.admin("user", "show", name) for name in ("ann", "mute")}
    assert [(each["password"], each["scram"]) for each in users.values()] == [(True, True), (True, False)]
    assert "SCRAM-SHA" not in str(users)
    for port in place.ports():
        good = shown(port, "ann", "good")
        assert good.code == 0 and good.final.startswith(b"v=")
        assert {shown(port, *wrong).code for wrong in (("ann", "bad"), ("nobody", "good"), ("mute", "good"))} == {0x87}


def test_paho_authenticates_by_auth_packets(place: Place) -> None:
    """A third-party client library: its AUTH, its properties, and the server's proof in CONNACK."""
    place.done("user", "add", "pia", "--scram", password="good")
    for password, expected in (("good", 0), ("bad", 0x87)):
        first, prove = client_first("pia"), partial(client_final, "pia", password)
        client = PahoAuth(place.ports()[0], "SCRAM-SHA-256", first, prove)
        assert client.outcome.code == expected and client.outcome.final.startswith(b"v=") == (not expected)
        client.close()


def test_unknown_user_gets_stable_salt_and_same_iterations(place: Place) -> None:
    """Both edges return the same salt for a name, repeatedly; all names have one number of iterations."""
    place.done("user", "add", "cora", "--scram", password="good")
    place.done("user", "add", "eli", password="good")
    salts = set()
    for name in ("cora", "eli", "nobody-at-all"):
        seen = {shown(port, name, "bad")[:2] for port in place.ports() for _ in range(2)}
        assert len(seen) == 1
        ((salt, iterations),) = seen
        assert len(salt) == 16 and iterations == 100_000
        salts.add(salt)
    assert len(salts) == 3


def test_disabled_user_or_new_password_ends_connections(place: Place) -> None:
    """Connections end with 0x87 at each edge before the verb returns."""
    place.done("user", "add", "bob", "--scram", password="good")
    for words, password in ((("user", "disable", "bob"), None), (("user", "password", "bob", "--scram"), "new")):
        clients = [BlockingClient(port) for port in place.ports()]
        for number, client in enumerate(clients):
            assert prove(client, f"bob-{number}", "bob", "good").code == 0
        place.done(*words, password=password)
        for client in clients:
            ended = client.read()
            assert ended is not None and getattr(ended, "reason_code", None) == 0x87
            client.socket.close()
        assert {shown(port, "bob", "good").code for port in place.ports()} == {0x87}
        place.done("user", "enable", "bob")
    assert {shown(port, "bob", "new").code for port in place.ports()} == {0}
    place.done("user", "password", "bob", password="new")  # without --scram there is no verifier any more
    assert {shown(port, "bob", "new").code for port in place.ports()} == {0x87}


def test_command_line_refuses_impossible_password(place: Place) -> None:
    for words, text in (
        (("user", "add", "\u2168", "--scram"), "IX"),
        (("user", "add", "zed", "--scram", "--no-password"), "--no-password"),
    ):
        result = place.order(*words, password=None if "--no-password" in words else "good")
        assert result.returncode == 2 and text in result.stderr and "Traceback" not in result.stderr


def test_scram_verifiers_survive_edge_restart(place: Place) -> None:
    """A later edge with another name and process."""
    before = shown(place.ports()[0], "nobody", "x")[:2]
    secret = {"scram_secret_file": str(place.cluster.data / "scram.secret")}
    with extra_edge(place.cluster, {"word": dict(LISTENER)}, "edge-7", **secret) as edge:
        assert shown(edge.port("word"), "nobody", "x")[:2] == before


def test_edge_without_scram_secret_does_not_start(place: Place) -> None:
    """One line names the missing setting."""
    with (
        pytest.raises(AssertionError, match="scram_secret_file"),
        extra_edge(place.cluster, {"word": dict(LISTENER)}, "edge-6"),
    ):
        pass
