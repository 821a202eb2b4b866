"""Eight kinds of client certificates with real Mosquitto clients: accepted, or refused with a reason."""

import datetime
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S
from tests.wire.revocation_lists import revocation_list
from wire.links.authority import DevelopmentAuthority

TIMEOUT_S = PATIENCE_S
PUBLISHER = shutil.which("mosquitto_pub") or ""
SUBSCRIBER = shutil.which("mosquitto_sub") or ""
LISTS_S = 60.0  # a new list closes the connections of its certificates within this time
NOT_AUTHORIZED = 0x87  # mosquitto_pub ends with the reason code of CONNACK
DAY = datetime.timedelta(days=1)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

pytestmark = pytest.mark.skipif(not PUBLISHER, reason="mosquitto_pub is not installed (Debian: mosquitto-clients)")


class Place(NamedTuple):
    """An edge that accepts certificates of one authority, with a revocation list."""

    cluster: LocalCluster
    edge: ExtraEdge
    devices: Path  # folder of the authority
    strangers: Path  # folder of another one
    revoked: Path  # a certificate in the list
    crl: Path


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        now = datetime.datetime.now(datetime.UTC)
        folders = [cluster.data / name for name in ("devices", "strangers")]
        authorities = [DevelopmentAuthority(folder, folder.name, now) for folder in folders]
        crl = cluster.data / "devices.crl"
        revoked = make(folders[0], "revoked")
        crl.write_bytes(revocation_list(folders[0], [revoked]))
        ca = str(authorities[0].certificate)
        table = {"tls": True, "allow_anonymous": False, "client_ca": ca, "crl_files": [str(crl)]}
        with extra_edge(cluster, {"mutual": table}) as edge:
            yield Place(cluster, edge, folders[0], folders[1], revoked, crl)


def make(
    authority: Path,
    name: str,
    *,
    days: tuple[int, int] = (-1, 30),
    use: x509.ObjectIdentifier = CLIENT,
    unnamed: bool = False,
) -> Path:
    """Create a certificate with its key beside it; return its path.

    Args:
        authority: Folder of the signer.
        name: Of the file, and its common name.
        days: Validity: start and end, from now.
        use: Extended key usage.
        unnamed: It has an organization and no common name.
    """
    issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    kind = NameOID.ORGANIZATION_NAME if unnamed else NameOID.COMMON_NAME
    signed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(kind, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .sign(cast("ec.EllipticCurvePrivateKey", signer), hashes.SHA256())
    )
    path = authority / f"{name}.pem"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.with_suffix(".key").write_bytes(secret)
    return path


def command(place: Place, certificate: Path, *more: str, program: str = PUBLISHER) -> list[str]:
    key = str(certificate.with_suffix(".key"))
    trusted = str(place.cluster.data / "tls" / "ca.pem")
    words = [program, "-h", "localhost", "-p", str(place.edge.port("mutual")), "-V", "5", "-q", "1"]
    return [*words, "--cafile", trusted, "--cert", str(certificate), "--key", key, "-t", "of/devices", *more]


def publish(place: Place, certificate: Path, text: str) -> int:
    """Publish one message, and return how mosquitto_pub ended."""
    done = subprocess.run(
        command(place, certificate, "-m", text), capture_output=True, timeout=TIMEOUT_S, check=False, text=True
    )
    return done.returncode


def subscriber(place: Place, certificate: Path, seconds: int) -> "subprocess.Popen[str]":
    """Start a mosquitto_sub that prints messages for this long; a refusal ends it with the reason code."""
    words = command(place, certificate, "-W", str(seconds), program=SUBSCRIBER)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def kinds(place: Place) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return certificates that TLS refuses, and those that the edge refuses."""
    by_tls = {
        "expired": make(place.devices, "expired", days=(-30, -1)),
        "future": make(place.devices, "future", days=(1, 30)),
        "foreign": make(place.strangers, "foreign"),
        "server": make(place.devices, "server", use=SERVER),
    }
    return by_tls, {"revoked": place.revoked, "unnamed": make(place.devices, "unnamed", unnamed=True)}


def witness(place: Place) -> BlockingClient:
    """Return a client subscribed to the devices' topics."""
    client = BlockingClient(place.cluster.port(0, "plain"), timeout_s=TIMEOUT_S)
    client.open("witness")
    client.subscribe("of/devices", qos=0)
    return client


def ended(place: Place) -> float:
    """Return how many connections lost their login while they were open."""
    return place.edge.events(place.cluster).get("logins_ended", 0.0)


def test_certificates_accepted_or_refused_with_reason(place: Place) -> None:
    """TLS refuses expired, foreign or wrong-purpose certificates; CONNACK the other two."""
    devices = place.devices
    seen = witness(place)
    good = make(devices, "good")
    by_tls, by_edge = kinds(place)
    assert publish(place, good, "first") == 0
    for text, certificate in by_tls.items():
        assert publish(place, certificate, text) not in (0, NOT_AUTHORIZED), text
    for text, certificate in by_edge.items():
        assert publish(place, certificate, text) == NOT_AUTHORIZED, text
    assert publish(place, good, "last") == 0
    assert [seen.take().payload for _ in range(2)] == [b"first", b"last"]
    seen.close()


def test_certificate_revoked_while_connected_stops_publishing(place: Place) -> None:
    """It publishes lines until the new list; another device continues."""
    lost, kept = (make(place.devices, name) for name in ("lost", "kept"))
    seen = witness(place)
    running = {
        path.stem: subprocess.Popen(command(place, path, "-l"), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for path in (lost, kept)
    }

    def say(name: str, text: str) -> None:
        stdin = running[name].stdin
        assert stdin is not None
        stdin.write(f"{name} {text}\n".encode())
        stdin.flush()

    try:
        for name in running:
            say(name, "before")
        assert {seen.take().payload for _ in running} == {b"lost before", b"kept before"}
        before = ended(place)
        place.crl.write_bytes(revocation_list(place.devices, [place.revoked, lost]))
        os.kill(place.edge.process, signal.SIGHUP)
        place.cluster.wait_for(lambda: ended(place) == before + 1, "ended", TIMEOUT_S)
        say("lost", "after")
        assert publish(place, lost, "lost again") == NOT_AUTHORIZED
        say("kept", "after")
        assert seen.take().payload == b"kept after"
    finally:
        seen.close()
        for process in running.values():
            process.kill()
            process.communicate()


def test_subscribers_receive_by_certificate(place: Place) -> None:
    """A retained message arrives at the valid client; refused ones receive no message."""
    good = make(place.devices, "reader")
    by_tls, by_edge = kinds(place)
    keep = command(place, good, "-r", "-m", "kept")
    subprocess.run(keep, capture_output=True, timeout=TIMEOUT_S, check=True)
    reading = subscriber(place, good, int(TIMEOUT_S))
    assert reading.stdout is not None and reading.stdout.readline() == "kept\n"
    others = {name: subscriber(place, path, 3) for name, path in (by_tls | by_edge).items()}
    for name, process in others.items():
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert output == "" and process.returncode != 0, name
        assert (process.returncode == NOT_AUTHORIZED) == (name in by_edge), name
    assert publish(place, good, "more") == 0 and reading.stdout.readline() == "more\n"
    reading.kill()
    reading.communicate()
    subprocess.run(command(place, good, "-r", "-n"), capture_output=True, timeout=TIMEOUT_S, check=True)


@pytest.mark.slow
def test_new_list_file_without_signal_disconnects_subscriber(place: Place) -> None:
    """Only the file changes, without a signal: within a minute, and the other subscriber continues."""
    lost, kept = (make(place.devices, name) for name in ("lost-reader", "kept-reader"))
    readers = {path.stem: subscriber(place, path, 300) for path in (lost, kept)}
    subprocess.run(command(place, kept, "-r", "-m", "kept"), capture_output=True, timeout=TIMEOUT_S, check=True)
    for process in readers.values():
        assert process.stdout is not None and process.stdout.readline() == "kept\n"
    began = time.monotonic()
    new = place.crl.with_suffix(".new")
    new.write_bytes(revocation_list(place.devices, [place.revoked, lost]))
    new.replace(place.crl)
    readers[lost.stem].wait(LISTS_S + TIMEOUT_S)
    took_s = time.monotonic() - began
    print(f"ended after {took_s:.1f} s")
    assert took_s < LISTS_S and publish(place, lost, "lost") == NOT_AUTHORIZED
    assert publish(place, kept, "more") == 0
    for name, process in readers.items():
        assert process.stdout is not None
        assert process.stdout.readline() == ("more\n" if name == kept.stem else "")
        process.kill()
        process.communicate()
    subprocess.run(command(place, kept, "-r", "-n"), capture_output=True, timeout=TIMEOUT_S, check=True)
