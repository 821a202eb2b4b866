"""Hostile tokens of real clients, and lying key servers: no client is accepted, and the edge keeps its latency.

Each wrong token but those of the wrong algorithm has the right signature: its content is refused.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mqtt.packets import Auth, Disconnect
from mqtt.properties import Properties, PropertyId
from tests.clients.blocking import BlockingClient
from tests.clients.http_child import http_child
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster

MIB = 1024 * 1024
REFUSED = (0x86, 0x87)
RSA_KEY = rsa.generate_private_key(65537, 2048)
SET_KEY = ed25519.Ed25519PrivateKey.generate()
PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DER = RSA_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
DIGESTS = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}
# The path selects the answer: each listener has its own kind of lying server.
KEYS = """
import gzip
PACKED = gzip.compress(b" " * (30 << 20))
class Answers(Quiet):
    protocol_version = "HTTP/1.0"
    def do_GET(self):
        with (folder / "paths").open("a") as log:
            log.write(self.path + "\\n")
        mode, body = self.path[1:], (folder / "keys.json").read_bytes()
        self.send_response(302 if mode == "moved" else 200)
        if mode == "moved":
            self.send_header("Location", "/good")
        if mode in ("huge", "half"):
            self.send_header("Content-Length", str(1 << 30))
        if mode == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if mode == "hangs":
            time.sleep(600)
        if mode == "drips":
            for byte in body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(1)
        if mode == "huge":
            for _ in range(1 << 14):
                self.wfile.write(b" " * (1 << 16))
        lies = {"html": b"<html>", "half": body[:20], "deep": b"[" * 60_000, "packed": PACKED}
        self.wfile.write(lies.get(mode, body))
"""
LIES = ("moved", "huge", "half", "packed", "hangs", "drips", "html", "deep")


class Place(NamedTuple):
    """An edge with a public key, and with servers of keys."""

    cluster: LocalCluster
    edge: ExtraEdge
    folder: Path

    def comes(self, token: bytes, listener: str = "public", *, auth: bool = False) -> int:
        """Return the reason code of a CONNECT with a token: as its password, or by the method JWT."""
        client = BlockingClient(self.edge.port(listener))
        try:
            if auth:
                properties = {PropertyId.AUTHENTICATION_METHOD: "JWT", PropertyId.AUTHENTICATION_DATA: token}
                return client.connect("c", properties=properties).reason_code
            return client.connect("c", username="x", password=token).reason_code
        finally:
            client.close()

    def resident(self) -> int:
        """Return the bytes that the edge holds."""
        status = Path(f"/proc/{self.edge.process}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        folder = cluster.data / "keys"
        folder.mkdir()
        key = folder / "public.pem"
        key.write_bytes(PEM)
        raw = SET_KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        shown = {"kty": "OKP", "crv": "Ed25519", "kid": "set", "use": "sig"}
        shown["x"] = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        (folder / "keys.json").write_text(json.dumps({"keys": [shown]}))
        with http_child(KEYS, str(folder)) as server:
            shared = {"tls": False, "allow_anonymous": False}
            tables: dict[str, dict[str, Any]] = {"public": {**shared, "token_keys": [str(key)], "token_acl": True}}
            for mode in ("good", *LIES):
                tables[mode] = {**shared, "token_jwks_url": server.url(f"/{mode}")}
            with extra_edge(cluster, tables) as edge:
                yield Place(cluster, edge, folder)


def part(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def signed(claims: object, header: dict[str, object] | None = None) -> bytes:
    """Return a token with any claims, signed by our key."""
    body = part({"alg": "RS256", "kid": "public", **(header or {})}) + b"." + part(claims)
    return body + b"." + part(jwt.get_algorithm_by_name("RS256").sign(body, RSA_KEY))


def claims(**more: object) -> dict[str, object]:
    return {"sub": "ann", "exp": int(time.time()) + 600, **more}


def other_algorithms() -> Iterator[tuple[str, bytes]]:
    """Yield tokens without a signature, and some that are signed with public data: the public key."""
    for name in ("none", "None", "NONE", "nOnE", ""):
        body = part({"alg": name, "kid": "public"}) + b"." + part(claims())
        yield f"alg {name!r}", body + b"."
        yield f"alg {name!r} with the signature of another token", body + b"." + signed(claims()).rsplit(b".", 1)[1]
    forms = {"PEM": PEM, "PEM without its last line end": PEM.rstrip(), "DER": DER, "its base64": part(DER)}
    for algorithm, digest in DIGESTS.items():
        for form, secret in forms.items():
            for kid in ({"kid": "public"}, {}):
                body = part({"alg": algorithm, **kid}) + b"." + part(claims())
                yield f"{algorithm} by {form}", body + b"." + part(hmac.digest(secret, body, digest))
    yield "its own key", signed(claims(), {"kid": "x", "jwk": {"kty": "oct", "k": "AAAA"}, "jku": "http://127.0.0.1/"})


def other_claims() -> Iterator[tuple[str, bytes]]:
    """Yield claims that are too many, too deep, of another type or out of all time."""
    exp = int(time.time()) + 600
    for count in (257, 500, 4_000):  # 10 000 are in no CONNECT: a field has 65 535 bytes, and a token 8 KiB
        yield f"{count} claims", json.dumps(claims(**{f"c{number}": 1 for number in range(count)})).encode()
    for sign, end in ((b"[", b"]"), (b'{"a":', b"}")):
        yield f"nested 1 000 deep in {sign!r}", b'{"sub":"ann","exp":%d,"x":%s1%s}' % (exp, sign * 1000, end * 1000)
    yield "not closed", b'{"sub":"ann","exp":%d,"x":%s' % (exp, b"[" * 1000)
    no_times: tuple[object, ...] = ("now", True, None, [exp], {}, "1e9")
    for name in ("exp", "nbf", "iat"):
        for value in no_times:
            yield f"{name} of {value!r}", json.dumps(claims(**{name: value})).encode()
        for number in (2**63, 2**63 - 1, 2**64, -(2**63), 10**400, 1e308):
            yield f"{name} of {str(number)[:20]}", json.dumps(claims(**{name: number})).encode()
        for text in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
            yield f"{name} of {text!r}", b'{"sub":"ann","exp":%d,"%s":%s}' % (exp, name.encode(), text)
    others: dict[str, tuple[object, ...]] = {
        "sub": (1, None, [], {}, True, "", "ann\0", "ann\nbob", "\ud800"),
        "aud": (1, {}, ["x"], "x", [1]),
        "jti": (1, None, [], "", "x" * 257, "a\nb"),
        "acl": (1, "all", None, [{"permission": "allow"}], {"pub": "#"}, [["#"]]),
        "client_attrs": ([], "x", {"a": 1}),
    }
    for name, wrong in others.items():
        for other in wrong:
            yield f"{name} of {other!r}", json.dumps(claims(**{name: other})).encode()
    yield "two of them", b'{"sub":"ann","exp":%d,"exp":1,"sub":"root"}' % exp
    for text in (b"", b"null", b"[]", b'"x"', b"1", b"\xff\xfe", b"{", json.dumps(claims()).encode() + b"{}"):
        yield f"{text[:9]!r} as all of it", text


def test_hostile_tokens(place: Place) -> None:
    """Alg none, HMAC with the public key, 4 000 claims, 1 000 levels, other types, times of 2^63."""
    wrong = [*other_algorithms(), *((name, signed(payload)) for name, payload in other_claims())]
    assert place.comes(signed(claims())) == 0
    before = place.resident()
    for name, token in wrong:
        for auth in (False, True):
            assert place.comes(token, auth=auth) in REFUSED, (name, auth)
    assert place.resident() - before < 16 * MIB
    assert place.comes(signed(claims())) == place.comes(signed(claims()), auth=True) == 0


def test_hostile_renewal_closes_connection(place: Place) -> None:
    """The same by AUTH of a connected client: it is disconnected, and receives no message by its invalid token."""
    method: Properties = {PropertyId.AUTHENTICATION_METHOD: "JWT"}
    for name, token in (
        list(other_algorithms())[::5] + [(name, signed(payload)) for name, payload in other_claims()][::5]
    ):
        client = BlockingClient(place.edge.port("public"))
        first = {**method, PropertyId.AUTHENTICATION_DATA: signed(claims())}
        assert client.connect("c", properties=first).reason_code == 0
        client.send(Auth(0x19, {**method, PropertyId.AUTHENTICATION_DATA: token}))
        answer = client.read()
        assert isinstance(answer, Disconnect) and answer.reason_code == 0x87, (name, answer)
        client.close()


def test_keys_of_lying_servers_ignored(place: Place) -> None:
    """A redirect to loopback, 1 GB, a byte a second, hung, cut, compressed, of another type: no key is used.

    Its clients get 0x88, and the other listeners keep working.
    """
    token = jwt.encode(claims(), SET_KEY, "EdDSA", headers={"kid": "set"}).encode()
    before = place.resident()
    for mode in LIES:
        assert place.comes(token, mode) == 0x88, mode
        assert place.comes(token, "good") == 0 == place.comes(signed(claims())), mode
    assert place.resident() - before < 16 * MIB
    asked = (place.folder / "paths").read_text().split()
    assert {f"/{mode}" for mode in LIES} <= set(asked)
    assert asked.count("/good") == 1, "no redirect is followed"
