"""One acl_file, about two hundred publishes and reads: a real Mosquitto and these rules decide alike."""

from pathlib import Path

import pytest

from access.rules.acl_file import AclFile, read_acl_file
from access.rules.rules import Action, CompiledRules, Subject
from mqtt.packets import Pingreq, Pingresp, Publish
from tests.clients.blocking import BlockingClient
from tests.clients.mosquitto_process import EXECUTABLE, mosquitto
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S
NOT_AUTHORIZED = 0x87
OWNER = "owner"  # may write all topics, so that reads of others are visible

ACL = """\
# lines before the first user are for clients without a user name
topic read public/#
topic write inbox/+
topic deny public/closed/#
topic $extra/open

user owner
topic write #
topic write $extra/#

user roger
topic readwrite both/#
topic deny both/no/+
topic read +/plus/#
topic write cmd/+/set
topic read dev/roger/closed
topic readwrite with space
# patterns are everybody's, wherever they stand
pattern readwrite dev/%u/+
pattern deny dev/%u/closed
pattern read ids/%c/#
pattern write $extra/%c/state
pattern read shared
pattern deny shared/never
pattern readwrite %u/own
pattern write %c/%u
pattern readwrite blocked/#
pattern deny blocked/%u
user anna smith
topic read both/yes
topic write #
topic deny public/closed/#
"""

# user ("" anonymous) and client ID
CLIENTS = [
    ("", "one"),
    ("roger", "two"),
    ("anna smith", "three"),
    ("stranger", "four"),
    ("stranger", "+"),
    ("roger", "x#"),
    ("+", "five"),
    ("#", "six"),
    ("%u", "%c"),
    ("$extra", "$extra"),
    ("a/plus", "seven"),
]
# Mosquitto is wider in three ways: it skips a pattern with %u, even a deny, for a client without a user name; a name
# with a "/" is several levels; and a name that begins with $ matches topics that begin with $.
WIDER = {
    ("", "one"): {"blocked/a", "blocked/roger"},
    ("$extra", "$extra"): {"$extra/own"},
    ("a/plus", "seven"): {"a/plus/own", "blocked/a", "blocked/roger"},
}
WIDER_WRITES = {("a/plus", "seven"): {"seven/a/plus"}}
TOPICS = [
    *(
        "public",
        "public/a",
        "public/closed",
        "public/closed/a",
        "inbox/a",
        "inbox/a/b",
        "both",
        "both/a/b",
        "both/no/a",
    ),
    *("both/no/a/b", "both/yes", "a/plus", "a/plus/b", "cmd/a/set", "cmd/a/b/set", "dev/roger/a", "dev/roger/closed"),
    *("dev/stranger/a", "dev/stranger/closed", "dev//a", "dev/anna smith/x", "ids/two", "ids/two/a", "ids/four/a"),
    *("ids/one/b", "ids/+", "shared", "shared/never", "with space", "stranger/own", "roger/own", "four/stranger"),
    *("$extra/open", "$extra/two/state", "$extra/one/state", "$extra/own", "%u/own", "%c/%u", "dev/%u/a", "ids/%c/a"),
    *("a/plus/own", "seven/a/plus", "blocked/a", "blocked/roger"),
]


def client(port: int, user: str, client_id: str) -> BlockingClient:
    connection = BlockingClient(port, timeout_s=TIMEOUT_S)
    connection.open(client_id, username=user or None)
    return connection


def names_of(topic: str) -> str:
    """Return a topic that can be published: some names of the table are not topics."""
    return topic.replace("+", "plus")


def reads(port: int, user: str, client_id: str) -> set[str]:
    """Return the topics that Mosquitto delivers to a client that subscribes to all topics."""
    reader, owner = client(port, user, client_id), client(port, OWNER, "publisher")
    try:
        reader.subscribe("#", "$extra/#", qos=0)
        for topic in TOPICS:
            assert owner.publish(names_of(topic)) in (0, 0x10)
        # All of it was written to the reader before the last PUBACK to the owner, and before the PINGRESP.
        reader.send(Pingreq())
        got = set()
        while not isinstance(packet := reader.read(), Pingresp):
            assert isinstance(packet, Publish), packet
            got.add(packet.topic_name)
        return got
    finally:
        reader.close()
        owner.close()


def writes(port: int, user: str, client_id: str) -> set[str]:
    """Return the topics that Mosquitto lets a client publish."""
    writer = client(port, user, client_id)
    try:
        return {names_of(topic) for topic in TOPICS if writer.publish(names_of(topic)) != NOT_AUTHORIZED}
    finally:
        writer.close()


def ours(file: AclFile, user: str, client_id: str, action: Action) -> set[str]:
    policy, subject = CompiledRules(file.tiers(user, client_id)), Subject(client_id, user)
    return {names_of(topic) for topic in TOPICS if policy.decide(action, names_of(topic), subject)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not Path(EXECUTABLE).exists():
        pytest.skip("mosquitto is not installed (Debian: mosquitto)")
    return tmp_path_factory.mktemp("mosquitto")


def test_a_real_mosquitto_decides_the_same(folder: Path) -> None:
    """Publishes by PUBACK, reads by deliveries: each client and topic of the tables."""
    acl = folder / "acl"
    acl.write_text(ACL)
    acl.chmod(0o644)
    file = read_acl_file(acl)
    cases = 0
    with mosquitto(folder, "allow_anonymous true", f"acl_file {acl}") as port:
        for user, client_id in CLIENTS:
            wider = WIDER.get((user, client_id), set())
            written, read = (ours(file, user, client_id, action) for action in (Action.PUBLISH, Action.RECEIVE))
            assert not wider & (written | read)
            wider_writes = wider | WIDER_WRITES.get((user, client_id), set())
            assert writes(port, user, client_id) == written | wider_writes, (user, client_id)
            assert reads(port, user, client_id) == read | wider, (user, client_id)
            cases += 2 * len(TOPICS)
    assert cases >= 200
