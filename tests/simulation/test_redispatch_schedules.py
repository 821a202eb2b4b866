"""Unacknowledged messages of a durable group member reach another member under any crash (docs/adr/0016)."""

import pytest

from stratamq.history.client_record import ClientOptions
from tests.simulation.scene import EPHEMERAL, Scene


@pytest.mark.parametrize("killed", ["", "e1", "e2", "s2"])
@pytest.mark.parametrize("options", [None, EPHEMERAL])
def test_messages_of_a_durable_member_are_redispatched_through_every_crash(
    killed: str, options: ClientOptions | None
) -> None:
    """QoS 2 that was never sent to the removed member: once."""
    scene = Scene(edges=3, storages=3, replicas=3, partitions=8)
    publisher = scene.client("publisher", "e3", client_id=scene.name_on("s1", "p"))
    leaver = scene.client("leaver", "e1", None, "$share/g/t/x", client_id=scene.name_on("s2", "l"))
    leaver.drop()
    scene.run(0.5)
    sent = [f"m{n}" for n in range(40)]
    for n, payload in enumerate(sent):
        scene.publish(publisher, "t/x", payload, 1 + n % 2)
    scene.until(lambda: not publisher.publishing, 20.0)
    other = scene.client("other", "e3", options, "$share/g/t/x", client_id=scene.name_on("s3", "o"))

    scene.connect(leaver, "e1", options=EPHEMERAL)
    if killed:
        scene.kill(killed)
    scene.until(lambda: set(sent) <= set(other.received), 30.0)
    twos = [p for n, p in enumerate(sent) if n % 2]
    assert all(other.received.count(p) == 1 for p in twos)
