"""Hostile names over real sockets: users, client IDs and certificates that an authenticator accepts unchanged.

They access no topic of other clients, and inject no line into the log, the audit or a list.
"""

import contextlib
import datetime
import json
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from access.operators.audit_file import read_lines
from mqtt.codec import encode_varint
from mqtt.packets import Connack, Suback, Subscribe, SubscriptionRequest
from tests.clients.blocking import BlockingClient
from tests.clients.hostile_names import HOSTILE_NAMES, LOOK_ALIKES
from tests.clients.http_child import http_child
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from wire.links.authority import DevelopmentAuthority

ALLOWS = """
class Answers(Quiet):
    def do_POST(self):
        self.body()
        self.send_response(204)
        self.end_headers()
"""
RULES = "user victim\ntopic of/victim/#\npattern readwrite of/%u/x\npattern readwrite at/%c/#\n"
VICTIMS = ("of/victim/x", "of/victim/deep/y", "at/victim/x", "of//x", "of/a/x", "of/%u/x", "at/%c/x", "$SYS/x")
NAMES = {**HOSTILE_NAMES, **{f"look-alike {number}": name for number, name in enumerate(LOOK_ALIKES)}}
COMMON_NAME_MAX = 64  # characters, by X.520


class Place(NamedTuple):
    """An edge whose authenticators accept every client."""

    cluster: LocalCluster
    edge: ExtraEdge
    devices: Path


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster, http_child(ALLOWS) as server:
        rules = cluster.data / "rules.acl"
        rules.write_text(RULES)
        devices = cluster.data / "devices"
        authority = DevelopmentAuthority(devices, "devices", datetime.datetime.now(datetime.UTC))
        shared = {"allow_anonymous": False, "acl_file": str(rules)}
        tables = {
            "asks": {**shared, "tls": False, "http_url": server.url("/auth")},
            "mutual": {**shared, "tls": True, "client_ca": str(authority.certificate), "certificate_name": "cn"},
        }
        bounds: dict[str, Any] = {"failed_logins_max": 0, "flapping_ends_max": 0, "client_id_bytes_max": 65_535}
        with extra_edge(cluster, tables, **bounds) as edge:
            yield Place(cluster, edge, devices)


def connect_bytes(client_id: bytes, user: bytes | None) -> bytes:
    """Return a CONNECT of MQTT 5, also one that no encoder of ours would make."""

    def text(value: bytes) -> bytes:
        return struct.pack(">H", len(value)) + value

    flags = 0x02 | (0xC0 if user is not None else 0)
    body = text(b"MQTT") + bytes([5, flags]) + struct.pack(">H", 60) + b"\0" + text(client_id)
    if user is not None:
        body += text(user) + text(b"x")
    return b"\x10" + encode_varint(len(body)) + body


def reaches(client: BlockingClient, own: str) -> list[str]:
    """Return the foreign topics that a client may publish or subscribe to."""
    found = []
    for topic in VICTIMS:
        if topic.startswith((f"of/{own}/", f"at/{own}/")):
            continue
        if client.publish(topic) != 0x87:
            found.append(f"publish {topic}")
        client.send(Subscribe(client.next_identifier(), [SubscriptionRequest(topic, 1)], {}))
        suback = client.read()
        assert isinstance(suback, Suback)
        if suback.reason_codes != [0x87]:
            found.append(f"subscribe {topic}")
    return found


def come(client: BlockingClient, client_id: str, user: str | None, own: str) -> int:
    """Send CONNECT, check the client's permissions, and return the code; 0x100 if no packet may have such a name."""
    encode = [one.encode("utf-8", "surrogatepass") for one in (client_id, user or "")]
    client.send(connect_bytes(encode[0], encode[1] if user is not None else None))
    with contextlib.suppress(ConnectionError):
        answer = client.read()
        if isinstance(answer, Connack):
            if answer.reason_code == 0:
                assert not reaches(client, own), own[:50]
            return answer.reason_code
    return 0x100


@pytest.mark.parametrize("name", NAMES)
def test_hostile_user_or_client_name_gets_own_topics_only(place: Place, name: str) -> None:
    """Wildcard characters, NUL, control characters, 65 535 bytes, homoglyphs: refused, or only a name."""
    text = NAMES[name]
    for client_id, user in (("c", text), (text, "nobody")):
        with contextlib.closing(BlockingClient(place.edge.port("asks"))) as client:
            come(client, client_id, user, text)


def certificate_of(authority: Path, common_name: str) -> tuple[Path, Path]:
    """Make a client's certificate with a name of any letters; return it and its key."""
    issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(cast("ec.EllipticCurvePrivateKey", signer), hashes.SHA256())
    )
    shown, secret = authority / "hostile.pem", authority / "hostile.key"
    shown.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return shown, secret


@pytest.mark.parametrize("name", [name for name, text in NAMES.items() if len(text) <= COMMON_NAME_MAX])
def test_hostile_certificate_name_gets_own_topics_only(place: Place, name: str) -> None:
    """The authority signed any name that its customer requested."""
    context = ssl.create_default_context(cafile=place.cluster.authority)
    context.load_cert_chain(*certificate_of(place.devices, NAMES[name]))
    with contextlib.closing(BlockingClient(place.edge.port("mutual"))) as client:
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        come(client, "c", None, NAMES[name])


def test_hostile_names_inject_no_line_into_logs_audits_or_lists(place: Place) -> None:
    """Logs have whole JSON lines, the audit an intact chain, lists no control characters; names stay complete."""
    with contextlib.ExitStack() as stack:
        there = set()
        for text in NAMES.values():
            client = stack.enter_context(contextlib.closing(BlockingClient(place.edge.port("asks"))))
            if come(client, text, "nobody", text) == 0:
                there.add(text)
            refused = stack.enter_context(contextlib.closing(BlockingClient(place.edge.port("asks"))))
            come(refused, "c", text, text)
        assert len(there) > len(NAMES) // 3
        listed = place.cluster.command("client", "list", "--limit", "100", "--data", str(place.cluster.data))
        assert listed.returncode == 0, listed.stderr
        assert all(line.isprintable() for line in listed.stdout.splitlines())
        rows = place.cluster.admin("client", "list", "--limit", "100")
        assert there <= {row["client_id"] for row in rows["rows"]}
    audit = place.cluster.data / "edge-9" / "audit.jsonl"
    verified = place.cluster.command("audit", "verify", str(audit))
    assert verified.returncode == 0, verified.stderr
    tail = place.cluster.command("audit", "tail", "-n", "500", str(audit))
    assert tail.returncode == 0 and all(line.isprintable() for line in tail.stdout.splitlines())
    lines = [json.loads(line) for line in read_lines(audit)]
    actors = {line.get("actor") for line in lines if line.get("kind") == "login"}
    assert any(actor and "victim" in actor for actor in actors)
    for line in (place.cluster.data / "edge-9.txt").read_bytes().rstrip(b"\n").split(b"\n"):
        output_line = line.decode()
        assert output_line.isprintable() and json.loads(output_line)["event"], output_line[:200]
