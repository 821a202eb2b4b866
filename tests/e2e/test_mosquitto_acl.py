"""One acl_file at a real Mosquitto and at an edge: the same publishes are taken, and the same messages delivered."""

import shutil
import subprocess
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from mqtt.packets import Pingreq, Pingresp, Publish, Suback, Subscribe, SubscriptionRequest
from tests.access.rules import test_mosquitto as table
from tests.clients.blocking import BlockingClient
from tests.clients.mosquitto_process import EXECUTABLE, mosquitto
from tests.e2e.extra_edge import extra_edge
from tests.e2e.local_cluster import local_cluster
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S
MAKER = shutil.which("mosquitto_passwd") or ""
PASSWORD = b"any"
# user ("" anonymous) and client ID; those of the table with names valid in a password file
CLIENTS = [("", "one"), ("roger", "two"), ("anna smith", "three"), ("stranger", "four")]
FILTERS = ["public/#", "both/+/+", "+/plus/#", "dev/roger/+", "ids/#", "shared", "blocked/+", "$extra/#", "#"]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of both brokers, with one acl_file."""
    if not (MAKER and Path(EXECUTABLE).exists()):
        pytest.skip("mosquitto and mosquitto_passwd are not installed (Debian: mosquitto)")
    folder = tmp_path_factory.mktemp("acl")
    acl, users = folder / "acl", folder / "users"
    acl.write_text(table.ACL)
    users.touch()
    for user in (table.OWNER, *(user for user, _ in CLIENTS if user)):
        words = [MAKER, "-b", str(users), user, PASSWORD.decode()]
        subprocess.run(words, check=True, capture_output=True)
    acl.chmod(0o644)
    users.chmod(0o600)
    listener = {"tls": False, "allow_anonymous": True, "password_file": str(users), "acl_file": str(acl)}
    with (
        mosquitto(folder, "allow_anonymous true", f"acl_file {acl}") as theirs,
        local_cluster("--edges", "1") as cluster,
        extra_edge(cluster, {"ruled": listener}) as edge,
    ):
        yield theirs, edge.port("ruled")


def client(port: int, user: str, client_id: str) -> BlockingClient:
    connection = BlockingClient(port, timeout_s=TIMEOUT_S)
    connection.open(client_id, username=user or None, password=PASSWORD if user else None)
    return connection


def writes(port: int, user: str, client_id: str) -> set[str]:
    """Return the topics that a client may publish, by PUBACK."""
    writer = client(port, user, client_id)
    names = [table.names_of(topic) for topic in table.TOPICS]
    taken = {name for name in names if writer.publish(name) != table.NOT_AUTHORIZED}
    writer.close()
    return taken


def reads(port: int, user: str, client_id: str, topic_filter: str, wanted: Collection[str] = ()) -> set[str]:
    """Return the topics that a client receives by a filter, regardless of SUBACK.

    Args:
        port: Of the broker.
        user: Of CONNECT.
        client_id: Of CONNECT.
        topic_filter: To subscribe to.
        wanted: Topics to wait for: retained messages of new filters.
    """
    reader, owner = client(port, user, client_id), client(port, table.OWNER, "publisher")
    reader.send(Subscribe(reader.next_identifier(), [SubscriptionRequest(topic_filter, 0)]))
    assert isinstance(reader.read(), Suback)
    for topic in table.TOPICS:
        assert owner.publish(table.names_of(topic)) in (0, 0x10)
    got: set[str] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        reader.send(Pingreq())
        while not isinstance(packet := reader.read(), Pingresp):
            assert isinstance(packet, Publish), packet
            got.add(packet.topic_name)
        if got.issuperset(wanted) or time.monotonic() > deadline:
            break
    reader.close()
    owner.close()
    return got


@pytest.mark.parametrize(("user", "client_id"), CLIENTS)
def test_publishes_and_deliveries_equal_mosquitto(ports: tuple[int, int], user: str, client_id: str) -> None:
    """Four clients: some two hundred publishes, and nine filters with their deliveries from forty topics.

    Mosquitto skips a pattern with %u for a client without a name, a deny too, and so grants more.
    """
    theirs, ours = ports
    wider = table.WIDER.get((user, client_id), set())
    assert writes(ours, user, client_id) == writes(theirs, user, client_id) - wider
    delivered = 0
    for topic_filter in FILTERS:
        wanted = reads(theirs, user, client_id, topic_filter) - wider
        assert reads(ours, user, client_id, topic_filter, wanted) == wanted, topic_filter
        delivered += len(wanted)
    assert delivered
    assert len(CLIENTS) * (len(table.TOPICS) + len(FILTERS)) >= 200
