"""Logins over real sockets by real clients: certificates and passwords, good and wrong, and users that go."""

import base64
import datetime
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from access.operators.audit_file import read_lines
from stratamq.toml_text import toml_document
from tests.clients.paho_outcome import Outcome
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S
from tests.wire.revocation_lists import revocation_list
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles

TIMEOUT_S = PATIENCE_S
PUBLISHER = shutil.which("mosquitto_pub") or ""
SUBSCRIBER = shutil.which("mosquitto_sub") or ""
MAKER = shutil.which("mosquitto_passwd") or ""


class Place(NamedTuple):
    """An edge that authenticates clients, and their credentials."""

    cluster: LocalCluster
    edge: ExtraEdge
    users: Path
    authority: DevelopmentAuthority
    stranger: CertificateFiles


def add_user(users: Path, name: str, password: str) -> None:
    subprocess.run([MAKER, "-b", str(users), name, password], check=True, capture_output=True)
    users.chmod(0o600)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    if not (PUBLISHER and MAKER):
        pytest.skip("mosquitto-clients and mosquitto are not installed")
    with local_cluster("--edges", "1") as cluster:
        now = datetime.datetime.now(datetime.UTC)
        authority = DevelopmentAuthority(cluster.data / "devices", "devices", now)
        other = DevelopmentAuthority(cluster.data / "others", "others", now)
        users = cluster.data / "users"
        users.touch(0o600)
        for name in ("alice", "carol"):
            add_user(users, name, f"{name}'s password")
        client_ca = str(authority.client().authority)
        crl = cluster.data / "devices.crl"
        crl.write_bytes(revocation_list(cluster.data / "devices"))
        tables = {
            "word": {"tls": False, "allow_anonymous": False, "password_file": str(users)},
            "mutual": {"tls": True, "allow_anonymous": False, "client_ca": client_ca},
            "listed": {"tls": True, "allow_anonymous": False, "client_ca": client_ca, "crl_files": [str(crl)]},
        }
        with extra_edge(cluster, tables) as edge:
            yield Place(cluster, edge, users, authority, other.client("mallory"))


def come(
    port: int,
    *,
    user: str | None = None,
    password: str | None = None,
    version: int = 5,
    shown: CertificateFiles | None = None,
    trusted: Path | None = None,
    client_id: str = "",
) -> tuple[paho.Client, Outcome]:
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5 if version == 5 else paho.MQTTv311
    )
    if user is not None:
        client.username_pw_set(user, password)
    if trusted is not None:
        context = ssl.create_default_context(cafile=str(trusted))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        client.tls_set_context(context)
    outcome = Outcome(client)
    client.connect("127.0.0.1" if trusted is None else "localhost", port)
    client.loop_start()
    return client, outcome


def code(port: int, **more: object) -> int:
    """Return the reason code of CONNACK."""
    client, outcome = come(port, **more)  # type: ignore[arg-type]
    try:
        assert outcome.wait(TIMEOUT_S)
        return outcome.code
    finally:
        client.disconnect()
        client.loop_stop()


def audited(place: Place) -> list[tuple[object, ...]]:
    """Return kind, outcome, actor and client ID of the entries in the edge's audit."""
    lines = map(json.loads, read_lines(place.cluster.data / "edge-9" / "audit.jsonl"))
    return [tuple(line.get(name) for name in ("kind", "outcome", "actor", "client_id")) for line in lines]


@pytest.mark.parametrize("version", [5, 4])
def test_paho_passwords_accepted_or_refused(place: Place, version: int) -> None:
    """The right one is accepted; wrong, unknown, none and a name alone are not. paho shows 3.1.1's codes as those of
    MQTT 5.
    """
    port = place.edge.port("word")
    assert code(port, user="alice", password="alice's password", version=version) == 0
    for user, password in (("alice", "carol's password"), ("nobody", "alice's password"), ("alice", "")):
        assert code(port, user=user, password=password, version=version) == 0x86
    assert code(port, version=version) == code(port, user="alice", version=version) == 0x87


def test_mosquitto_pub_with_a_password(place: Place) -> None:
    """A message arrives with the right one; a wrong one gives an exit code."""

    def publish(password: str) -> int:
        command = [PUBLISHER, "-p", str(place.edge.port("word")), "-u", "carol", "-P", password, "-V", "5"]
        return subprocess.run(
            [*command, "-q", "1", "-t", "a", "-m", "m"], capture_output=True, timeout=TIMEOUT_S, check=False
        ).returncode

    assert publish("carol's password") == 0
    assert publish("wrong") == 134


def read_one(port: int, user: str, password: str) -> tuple[int, str]:
    """Return exit code and output of a mosquitto_sub that waits for one message."""
    command = [SUBSCRIBER, "-p", str(port), "-u", user, "-P", password, "-V", "5", "-t", "kept", "-C", "1", "-W", "60"]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, text=True)
    return done.returncode, done.stdout


def keep_one(port: int, user: str, password: str) -> None:
    """Have mosquitto_pub leave a retained message."""
    command = [PUBLISHER, "-p", str(port), "-u", user, "-P", password, "-V", "5", "-q", "1", "-r", "-t", "kept"]
    subprocess.run([*command, "-m", "for you"], capture_output=True, timeout=TIMEOUT_S, check=True)


def test_mosquitto_sub_with_a_password(place: Place) -> None:
    """A message arrives with the right one; a wrong one is reported, and no message arrives."""
    port = place.edge.port("word")
    keep_one(port, "alice", "alice's password")
    assert read_one(port, "carol", "carol's password") == (0, "for you\n")
    assert read_one(port, "carol", "wrong") == read_one(port, "nobody", "x") == (0x86, "")


def test_paho_certificates_accepted_or_refused(place: Place) -> None:
    """The listener's authority is accepted; no certificate, another authority's, and a node's are not."""
    port, trusted = place.edge.port("mutual"), place.cluster.data / "tls" / "ca.pem"
    assert code(port, shown=place.authority.client("device-7"), trusted=trusted) == 0
    assert code(port, trusted=trusted) == 0x87
    assert code(port, shown=place.authority.node("edge", "edge-7"), trusted=trusted) == 0x87
    try:
        client, outcome = come(port, shown=place.stranger, trusted=trusted)
    except (ssl.SSLError, ConnectionError):  # before TLS 1.3 the handshake itself fails
        return
    assert outcome.gone.wait(TIMEOUT_S) and not outcome.is_set()
    client.loop_stop()


def test_user_cannot_take_session_of_another(place: Place) -> None:
    """0x87 for a client ID that another user holds, and a line in the audit; the owner stays."""
    own = paho.Client(CallbackAPIVersion.VERSION2, "alices-queue", protocol=paho.MQTTv311, clean_session=False)
    own.username_pw_set("alice", "alice's password")
    outcome = Outcome(own)
    own.connect("127.0.0.1", place.edge.port("word"))
    own.loop_start()
    assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    try:
        other = paho.Client(CallbackAPIVersion.VERSION2, "alices-queue", protocol=paho.MQTTv5)
        other.username_pw_set("carol", "carol's password")
        stolen = Outcome(other)
        other.connect("127.0.0.1", place.edge.port("word"))
        other.loop_start()
        assert stolen.wait(TIMEOUT_S) and stolen.code == 0x87
        other.loop_stop()
        assert not outcome.gone.is_set()
        wanted = ("login", "refused", "carol", "alices-queue")
        place.cluster.wait_for(lambda: wanted in audited(place), "a line in the audit", TIMEOUT_S)
    finally:
        own.disconnect()
        own.loop_stop()


def test_user_removed_from_file_disconnected(place: Place) -> None:
    """SIGHUP closes its connections with 0x87; another user's stay, and the removed user is refused."""
    add_user(place.users, "bob", "bob's password")
    port = place.edge.port("word")
    os.kill(place.edge.process, signal.SIGHUP)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        gone, outcome = come(port, user="bob", password="bob's password")
        assert outcome.wait(TIMEOUT_S) and time.monotonic() < deadline
        if outcome.code == 0:
            break
        gone.loop_stop()
        time.sleep(0.2)
    stays, staying = come(port, user="carol", password="carol's password")
    assert staying.wait(TIMEOUT_S)
    subprocess.run([MAKER, "-D", str(place.users), "bob"], check=True, capture_output=True)
    place.users.chmod(0o600)
    os.kill(place.edge.process, signal.SIGHUP)
    assert outcome.gone.wait(TIMEOUT_S) and outcome.ended == 0x87
    gone.loop_stop()
    assert code(port, user="bob", password="bob's password") == 0x86
    assert not staying.gone.is_set()
    stays.disconnect()
    stays.loop_stop()


def test_edge_limit_follows_reload(place: Place) -> None:
    """Of ``[edge]``: SIGHUP, no restart, and no connection is closed."""
    path, port = place.cluster.data / "edge-9" / "edge.toml", place.edge.port("word")
    stays, staying = come(port, user="carol", password="carol's password")
    assert staying.wait(TIMEOUT_S) and staying.code == 0
    for most, wanted in ((23, 0x85), (256, 0)):
        document = tomllib.loads(path.read_text())
        document["edge"]["client_id_bytes_max"] = most
        path.write_text(toml_document(document))
        os.kill(place.edge.process, signal.SIGHUP)

        def is_so(wanted: int = wanted) -> bool:
            return code(port, user="alice", password="alice's password", client_id="c" * 40) == wanted

        place.cluster.wait_for(is_so, f"{wanted:#x}", TIMEOUT_S)
    assert not staying.gone.is_set()
    stays.disconnect()
    stays.loop_stop()


def test_certificate_revoked_while_connected(place: Place) -> None:
    """SIGHUP reads the new list: 0x87 for the revoked device, and the other device stays."""
    port, trusted = place.edge.port("listed"), place.cluster.data / "tls" / "ca.pem"
    shown = {name: place.authority.client(name) for name in ("lost", "kept")}
    clients = {name: come(port, shown=files, trusted=trusted) for name, files in shown.items()}
    for _, outcome in clients.values():
        assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    new = revocation_list(place.cluster.data / "devices", [shown["lost"].certificate])
    (place.cluster.data / "devices.crl").write_bytes(new)
    os.kill(place.edge.process, signal.SIGHUP)
    assert clients["lost"][1].gone.wait(TIMEOUT_S) and clients["lost"][1].ended == 0x87
    assert code(port, shown=shown["lost"], trusted=trusted) == 0x87
    assert not clients["kept"][1].gone.is_set()
    for client, _ in clients.values():
        client.disconnect()
        client.loop_stop()


def test_certificate_revoked_by_cluster(place: Place) -> None:
    """`stratamq revoke --certificate FILE`, and back; a listener without its own lists."""
    port, trusted = place.edge.port("mutual"), place.cluster.data / "tls" / "ca.pem"
    shown = place.authority.client("stolen")
    client, outcome = come(port, shown=shown, trusted=trusted)
    assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    assert place.cluster.admin("revoke", "--certificate", str(shown.certificate))["settled"]
    assert outcome.gone.wait(PATIENCE_S) and outcome.ended == 0x87
    assert code(port, shown=shown, trusted=trusted) == 0x87
    place.cluster.admin("unrevoke", "--certificate", str(shown.certificate))
    assert code(port, shown=shown, trusted=trusted) == 0
    client.loop_stop()


def test_stale_list_metric_only_for_listeners_with_lists(place: Place) -> None:
    """Otherwise its alert would never resolve if another listener has no list."""
    page = place.cluster.metrics_at(place.edge.addresses["metrics"])
    seconds_left = re.findall(r'stratamq_client_lists_seconds_left\{listener="(\w+)"\} (\S+)', page)
    assert [(name, float(left) > 0) for name, left in seconds_left] == [("listed", True)]


def reloads(place: Place) -> dict[str, float]:
    page = place.cluster.metrics_at(place.edge.addresses["metrics"])
    return {what: float(count) for what, count in re.findall(r'stratamq_reloads_total\{outcome="(\w+)"\} (\S+)', page)}


def reload(place: Place, outcome: str, limit: int | None = None, bound: int = 0) -> None:
    """Send SIGHUP while a resource has a bound, and wait until the reload has this outcome."""
    before, process = reloads(place), place.edge.process
    former = resource.prlimit(process, limit) if limit is not None else (0, 0)
    if limit is not None:
        resource.prlimit(process, limit, (bound, former[1]))
    try:
        os.kill(process, signal.SIGHUP)
        time.sleep(0.5)  # duration of the fault: no request is possible without descriptors
    finally:
        if limit is not None:
            resource.prlimit(process, limit, former)
    place.cluster.wait_for(lambda: reloads(place) != before, "reloaded", TIMEOUT_S)
    assert reloads(place)[outcome] == before.get(outcome, 0) + 1


def test_reload_without_descriptors(place: Place) -> None:
    """Refused; users stay users, unknown names stay unknown."""
    port = place.edge.port("word")
    stays, outcome = come(port, user="carol", password="carol's password")
    assert outcome.wait(TIMEOUT_S) and outcome.code == 0
    add_user(place.users, "late", "late's password")
    reload(place, "refused", resource.RLIMIT_NOFILE, 3)
    assert code(port, user="carol", password="carol's password") == 0
    assert code(port, user="late", password="late's password") == 0x86 == code(port, user="carol", password="x")
    assert code(port) == 0x87 and not outcome.gone.is_set()
    reload(place, "done")
    assert code(port, user="late", password="late's password") == 0
    stays.disconnect()
    stays.loop_stop()


def test_reload_of_unreadable_files_keeps_users(place: Place) -> None:
    """A folder, an empty file, a byte too much, wrong permissions."""
    port, kept, whole = place.edge.port("word"), place.users.with_suffix(".kept"), place.users.read_bytes()
    for damage in ("folder", "missing", "torn", "open"):
        place.users.rename(kept)
        if damage == "folder":
            place.users.mkdir()
        elif damage != "missing":
            place.users.write_bytes(whole + (b"torn\n" if damage == "torn" else b""))
            place.users.chmod(0o600 if damage == "torn" else 0o644)
        reload(place, "refused")
        assert code(port, user="carol", password="carol's password") == 0, damage
        assert code(port, user="torn", password="") in (0x86, 0x87) and code(port) == 0x87, damage
        if damage == "folder":
            place.users.rmdir()
        kept.rename(place.users)
    reload(place, "done")


def test_reload_on_a_full_disk(place: Place) -> None:
    """No byte can be written: the reload applies completely, unknown users are refused; the audit continues."""
    port = place.edge.port("word")
    subprocess.run([MAKER, "-D", str(place.users), "late"], check=True, capture_output=True)
    place.users.chmod(0o600)
    reload(place, "done", resource.RLIMIT_FSIZE, 0)
    assert code(port, user="late", password="late's password") == 0x86
    assert code(port, user="carol", password="carol's password") == 0
    missing = ("gap", "done", None, None)
    place.cluster.wait_for(lambda: missing in audited(place), "a line for those that are missing", TIMEOUT_S)


def test_no_secret_is_written(place: Place) -> None:
    """Neither right nor wrong passwords of these logins are in a log, an audit or a store."""
    planted = b"planted-7c1e"
    port = place.edge.port("word")
    assert code(port, user="carol", password=planted.decode(), client_id="prober") == 0x86
    assert all(code(port, user=user, password=f"{user}'s password") == 0 for user in ("carol", "alice"))
    refused = ("login", "refused", "carol", "prober")
    place.cluster.wait_for(lambda: refused in audited(place), "the refusal in the audit", TIMEOUT_S)
    plain = (planted, b"carol's password", b"alice's password", b"late's password")
    secrets = (*plain, *(base64.b64encode(one).rstrip(b"=")[:-1] for one in plain))
    files = [path for path in (*place.cluster.data.rglob("*"), place.cluster.log) if path.is_file()]
    found = [f"{path.name}: {one!r}" for path in files for one in secrets if one in path.read_bytes()]
    assert len(files) > 20 and not found
