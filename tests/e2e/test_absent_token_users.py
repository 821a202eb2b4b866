"""C7 for users whom no router knows: a right that is gone while the client of a token is away gives nothing any more.

No edge looks at their sessions meanwhile (ADR 131): they are judged when the client comes back, before anything flows.
"""

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jwt
import pytest

from mqtt.properties import PropertyId
from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster

SECRET = b"a secret of thirty-two bytes, or more"
EXPIRY = {PropertyId.SESSION_EXPIRY_INTERVAL: 600}
BOTH, ONE = '["a/#", "b/#", "end"]', '["b/#", "end"]'
QUIET_S = 0.5


class Place(NamedTuple):
    """An edge that takes tokens: rules of one listener are in a file, those of the other in the token."""

    cluster: LocalCluster
    edge: ExtraEdge
    roles: Path

    def grant(self, filters: str) -> None:
        """Let the role of the file subscribe to these."""
        self.roles.write_text(f'[roles.device]\npublish = ["#"]\nsubscribe = {filters}\n')

    def come(self, listener: str, user: str, acl: list[str] | None = None) -> BlockingClient:
        """Connect with a new token of a user; its stored session goes on."""
        claims: dict[str, object] = {"sub": user, "exp": int(time.time()) + 600}
        if acl is not None:
            claims["acl"] = {"pub": ["#"], "sub": acl}
        client = BlockingClient(self.edge.port(listener))
        token = jwt.encode(claims, SECRET, "HS256").encode()
        client.open(user, username="x", password=token, clean_start=False, properties=EXPIRY)
        return client

    def refused(self) -> float:
        """Return how many deliveries were dropped as not_authorized, at this edge and where they were stored."""
        pages = (self.cluster.metrics_at(self.edge.addresses["metrics"]), self.cluster.metrics("storage-0"))
        row = r'stratamq_messages_dropped_total\{[^}]*reason="not_authorized"[^}]*\} (\S+)'
        return sum(map(float, re.findall(row, "".join(pages))))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        secret, roles = cluster.data / "token.secret", cluster.data / "own_roles.toml"
        secret.touch(0o600)
        secret.write_bytes(SECRET + b"\n")
        shared = {"tls": False, "allow_anonymous": False, "token_secret": str(secret)}
        roles.write_text(f'[roles.device]\npublish = ["#"]\nsubscribe = {BOTH}\n')
        by_file = {**shared, "roles_file": str(roles), "authenticated_roles": ["device"]}
        with extra_edge(cluster, {"file": by_file, "claim": {**shared, "token_acl": True}}) as edge:
            yield Place(cluster, edge, roles)


def taken(client: BlockingClient) -> list[str]:
    """Return the topics of what comes until ``end``, and of what comes behind it for a while."""
    topics = []
    with contextlib.suppress(TimeoutError, socket.timeout):
        while True:
            topics.append(client.take().topic_name)
            if topics[-1] == "end":
                client.socket.settimeout(QUIET_S)
    return topics


@pytest.mark.parametrize("listener", ["file", "claim"])
def test_c7_an_absent_client_of_a_token_receives_nothing_by_a_right_that_is_gone(place: Place, listener: str) -> None:
    """Queued, live and granted filters: none by the rule that was taken away while it was gone.

    NIST: respond.
    """
    user = f"ann-{listener}"
    place.grant(BOTH)
    os.kill(place.edge.process, signal.SIGHUP)
    acl = (["a/#", "b/#", "end"], ["b/#", "end"]) if listener == "claim" else (None, None)
    publisher = place.come(listener, f"bob-{listener}", ["x"] if listener == "claim" else None)
    with contextlib.closing(place.come(listener, user, acl[0])) as client:
        client.subscribe("a/#", "b/#", "end")
        client.disconnect()
    for topic in ("a/1", "b/1", "a/2", "end"):
        assert publisher.publish(topic) in (0, 0x10)
    before = place.refused()
    if listener == "file":
        place.grant(ONE)
        os.kill(place.edge.process, signal.SIGHUP)
        place.cluster.wait_for(lambda: _is_refused(place, "a/#"), "the reload")
    with contextlib.closing(place.come(listener, user, acl[1])) as client:
        assert taken(client) == ["b/1", "end"]
        place.cluster.wait_for(lambda: place.refused() >= before + 2, "two counted refusals")
        client.socket.settimeout(20)
        for topic in ("a/3", "b/3", "end"):
            publisher.publish(topic)
        assert taken(client) == ["b/3", "end"]
        client.disconnect()
    if listener == "file":  # the filter is gone for good: the right comes back, and it does not
        place.grant(BOTH)
        os.kill(place.edge.process, signal.SIGHUP)
        place.cluster.wait_for(lambda: not _is_refused(place, "a/#"), "the reload")
    publisher.publish("a/4")
    publisher.publish("end")
    with contextlib.closing(place.come(listener, user, acl[0])) as client:
        assert taken(client) == ["end"]
    publisher.close()


def _is_refused(place: Place, topic_filter: str) -> bool:
    with contextlib.closing(place.come("file", "probe")) as client:
        try:
            client.subscribe_each(topic_filter)
        except AssertionError:
            return True
        return False
