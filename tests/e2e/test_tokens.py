"""Tokens of real clients, with a real key server in its own process: keys that rotate, die and lie."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.clients.http_child import HttpChild, http_child
from tests.clients.paho_auth import REAUTHENTICATE, PahoAuth
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import local_cluster
from tests.e2e.test_login import SUBSCRIBER, TIMEOUT_S, code, come, keep_one, read_one

PUBLISHER = shutil.which("mosquitto_pub") or ""
SECRET = b"a secret of thirty-two bytes, or more"
KEYS = """
class Answers(Quiet):
    protocol_version = "HTTP/1.0"
    def do_GET(self):
        mode = (folder / "mode").read_text()
        with (folder / "asked").open("a") as asked:
            asked.write("x")
        self.send_response(302 if mode == "redirect" else 200)
        if mode == "redirect":
            self.send_header("Location", "/again")
        self.end_headers()
        body = (folder / "keys.json").read_bytes()
        self.wfile.write(b"{" * 10 ** 7 if mode == "huge" else b"<html>" if mode == "lie" else body)
"""


class Place(NamedTuple):
    """An edge that takes tokens, and the folder of its server of keys."""

    edge: ExtraEdge
    folder: Path
    server: HttpChild

    def port(self, listener: str) -> int:
        return self.edge.port(listener)

    def serve(self, mode: str, **keys: ed25519.Ed25519PrivateKey) -> None:
        listed = []
        for kid, key in keys.items():
            raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
            listed.append({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "use": "sig"})
        (self.folder / "keys.json").write_text(json.dumps({"keys": listed}))
        (self.folder / "mode").write_text(mode)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        folder = cluster.data / "keys"
        folder.mkdir()
        secret = cluster.data / "token.secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET + b"\n")
        (folder / "mode").write_text("good")
        (folder / "keys.json").write_text('{"keys": []}')
        with http_child(KEYS, str(folder)) as server:
            url, shared = server.url("/keys"), {"tls": False, "allow_anonymous": False, "token_audience": "edge"}
            tables = {"secret": {**shared, "token_secret": str(secret)}, "set": {**shared, "token_jwks_url": url}}
            with extra_edge(cluster, tables) as edge:
                yield Place(edge, folder, server)


def token(key: Any, algorithm: str, kid: str = "", **claims: object) -> str:
    payload: dict[str, object] = {"sub": "ann", "aud": "edge", "exp": int(time.time()) + 600, **claims}
    return jwt.encode(payload, key, algorithm, headers={"kid": kid} if kid else None)


def test_tokens_of_a_shared_secret(place: Place) -> None:
    """T1: another signature, no end, another audience, another algorithm and none at all are refused."""
    port = place.port("secret")
    assert code(port, user="x", password=token(SECRET, "HS256")) == 0
    for wrong in (
        token(b"another secret of thirty-two bytes", "HS256"),
        token(SECRET, "HS512"),
        token(SECRET, "HS256", aud="other"),
        token(SECRET, "HS256", exp=int(time.time()) - 600),
        token(None, "none"),
        "no token at all",
    ):
        assert code(port, user="x", password=wrong) in (0x86, 0x87)


@pytest.mark.skipif(not PUBLISHER, reason="needs mosquitto_pub: apt-get install mosquitto-clients")
def test_mosquitto_pub_with_a_token(place: Place) -> None:
    """A valid one is accepted and authorized; a wrong one gives an exit code."""

    def publish(password: str) -> int:
        command = [PUBLISHER, "-V", "5", "-p", str(place.port("secret")), "-u", "x", "-P", password]
        command += ["-t", "a", "-m", "m"]
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False).returncode

    assert publish(token(SECRET, "HS256")) == 0
    assert publish(token(b"another secret of thirty-two bytes", "HS256")) == 0x86


@pytest.mark.skipif(not SUBSCRIBER, reason="needs mosquitto_sub: apt-get install mosquitto-clients")
def test_mosquitto_sub_with_a_token(place: Place) -> None:
    """A message arrives with a valid one; a wrong one is reported, and no message arrives."""
    port = place.port("secret")
    keep_one(port, "x", token(SECRET, "HS256"))
    assert read_one(port, "x", token(SECRET, "HS256")) == (0, "for you\n")
    for wrong in (token(b"another secret of thirty-two bytes", "HS256"), token(SECRET, "HS256", aud="other")):
        code_of_end, output = read_one(port, "x", wrong)
        assert code_of_end in (0x86, 0x87) and output == ""


def test_connection_closed_when_token_expires(place: Place) -> None:
    for life_s in (3, 10, 60):  # longer on a machine that needs so long until it is connected
        until = int(time.time()) + life_s
        client, outcome = come(place.port("secret"), user="x", password=token(SECRET, "HS256", exp=until))
        assert outcome.wait(TIMEOUT_S)
        if outcome.code == 0:
            break
        client.loop_stop()
    assert outcome.code == 0
    assert outcome.gone.wait(TIMEOUT_S) and outcome.ended == 0x87
    client.loop_stop()


def test_paho_logs_in_and_renews_by_auth(place: Place) -> None:
    """The method JWT: the next token extends the connection, and an invalid one ends it (0x87)."""

    def until(seconds: float) -> bytes:
        return token(SECRET, "HS256", exp=time.time() + seconds).encode()

    for life_s in (3.0, 10.0, 60.0):  # longer on a machine that needs so long until it is connected
        ends_at = time.time() + life_s
        client = PahoAuth(place.port("secret"), "JWT", until(life_s))
        client.send_auth(REAUTHENTICATE, until(600.0))
        if client.outcome.code == 0 and client.renewed.wait(TIMEOUT_S):
            break
        client.close()
    assert client.outcome.code == 0 and not client.outcome.gone.wait(max(0.0, ends_at + 1.0 - time.time()))
    client.send_auth(REAUTHENTICATE, token(b"another secret of thirty-two bytes", "HS256").encode())
    assert client.outcome.gone.wait(TIMEOUT_S) and client.outcome.ended == 0x87
    client.close()
    stranger = PahoAuth(place.port("secret"), "JWT", b"no token")
    assert stranger.outcome.code in (0x86, 0x87)
    stranger.close()


def test_keys_of_server_rotate_die_and_lie(place: Place) -> None:
    """A new key is fetched for the first token that names it; a wrong answer of the server keeps the known keys."""
    port, one, two, bad = place.port("set"), *(ed25519.Ed25519PrivateKey.generate() for _ in range(3))
    place.serve("good", one=one)
    # The empty set of the start was a failure: asked again in 30 s, or for a login.
    deadline = time.monotonic() + 30 + TIMEOUT_S
    while code(port, user="x", password=token(one, "EdDSA", "one")) != 0:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    place.serve("lie", one=one, two=two)
    assert code(port, user="x", password=token(two, "EdDSA", "two")) == 0x86
    assert code(port, user="x", password=token(one, "EdDSA", "one")) == 0
    asked, began = len((place.folder / "asked").read_text()), time.monotonic()
    for _ in range(20):
        assert code(port, user="x", password=token(bad, "EdDSA", "unknown")) == 0x86
    fetches = len((place.folder / "asked").read_text()) - asked
    assert fetches <= 1 + (time.monotonic() - began) / 30, "a fetch in 30 s, whoever asks"
    place.server.stand_still()
    assert code(port, user="x", password=token(one, "EdDSA", "one")) == 0
    assert code(port, user="x", password=token(bad, "EdDSA", "one")) == 0x86
