"""C7 for users unknown to the routers: a permission revoked while the client is away has no effect on its return.

The users come from tokens, with rules in a roles file, an acl_file or the token, and from a password file; those of
an HTTP server are in ``test_http_login.py``. No edge checks their sessions meanwhile (ADR 131, 133): they are
authorized when the client returns, before any delivery.
"""

import base64
import contextlib
import hashlib
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
from mqtt.reasons import ReasonCode
from tests.clients.blocking import BlockingClient
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.patience import PATIENCE_S

SECRET = b"a secret of thirty-two bytes, or more"
EXPIRY = {PropertyId.SESSION_EXPIRY_INTERVAL: 600}
BOTH, ONE = ("a/#", "b/#", "end"), ("b/#", "end")
QUIET_S = 0.5


class Place(NamedTuple):
    """An edge whose listeners differ in the source of users and of their rules."""

    cluster: LocalCluster
    edge: ExtraEdge
    roles: Path
    acl: Path

    def grant(self, filters: tuple[str, ...]) -> None:
        """Allow all users of the files to subscribe to these."""
        write_rules(self.roles, self.acl, filters)
        os.kill(self.edge.process, signal.SIGHUP)

    def come(self, listener: str, user: str, acl: list[str] | None = None) -> BlockingClient:
        """Connect as a user, with a new token or its password; its stored session resumes."""
        if listener == "words":
            return self._connected(listener, user, user, b"good")
        claims: dict[str, object] = {"sub": user, "exp": int(time.time()) + 600}
        if acl is not None:
            claims["acl"] = {"pub": ["#"], "sub": acl}
        return self._connected(listener, user, "x", jwt.encode(claims, SECRET, "HS256").encode())

    def _connected(self, listener: str, user: str, name: str, password: bytes) -> BlockingClient:
        """Connect; come again where rules moved while the session was opened (0x89)."""
        while True:
            client = BlockingClient(self.edge.port(listener))
            found = client.connect(user, username=name, password=password, clean_start=False, properties=EXPIRY)
            if found.reason_code == 0:
                return client
            assert found.reason_code == ReasonCode.SERVER_BUSY, found
            client.close()

    def refused(self) -> float:
        """Return how many deliveries were dropped as not_authorized, at this edge and where they were stored."""
        pages = (self.cluster.metrics_at(self.edge.addresses["metrics"]), self.cluster.metrics("storage-0"))
        row = r'stratamq_messages_dropped_total\{[^}]*reason="not_authorized"[^}]*\} (\S+)'
        return sum(map(float, re.findall(row, "".join(pages))))


def write_rules(roles: Path, acl: Path, filters: tuple[str, ...]) -> None:
    granted = ", ".join(f'"{one}"' for one in filters)
    roles.write_text(f'[roles.device]\npublish = ["#"]\nsubscribe = [{granted}]\n')
    acl.write_text("pattern write #\n" + "".join(f"pattern read {one}\n" for one in filters))


def password_line(user: str) -> str:
    """Return a user's line with a valid password, as mosquitto_passwd writes it."""
    salt = os.urandom(12)
    made = hashlib.pbkdf2_hmac("sha512", b"good", salt, 101)
    return f"{user}:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(made).decode()}\n"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        secret, roles, acl = (cluster.data / name for name in ("token.secret", "own_roles.toml", "own.acl"))
        secret.touch(0o600)
        secret.write_bytes(SECRET + b"\n")
        users = cluster.data / "users"
        users.touch(0o600)
        users.write_text("".join(map(password_line, ("ann-words", "bob-words", "probe"))))
        write_rules(roles, acl, BOTH)
        base = {"tls": False, "allow_anonymous": False}
        tokens = {**base, "token_secret": str(secret)}
        of_file = {"roles_file": str(roles), "authenticated_roles": ["device"]}
        tables = {
            "file": {**tokens, **of_file},
            "claim": {**tokens, "token_acl": True},
            "acl": {**tokens, "acl_file": str(acl)},
            "words": {**base, **of_file, "password_file": str(users)},
        }
        with extra_edge(cluster, tables) as edge:
            yield Place(cluster, edge, roles, acl)


def taken(client: BlockingClient) -> list[str]:
    """Return the topics received until ``end``, and for a while afterwards."""
    topics = []
    with contextlib.suppress(TimeoutError, socket.timeout):
        while True:
            topics.append(client.take().topic_name)
            if topics[-1] == "end":
                client.socket.settimeout(QUIET_S)
    return topics


@pytest.mark.parametrize("listener", ["file", "claim", "acl", "words"])
def test_c7_permission_revoked_while_client_absent_stops_delivery(place: Place, listener: str) -> None:
    """Queued, live and retained messages of removed rules are not delivered."""
    user, of_token = f"ann-{listener}", listener == "claim"
    place.grant(BOTH)
    place.cluster.wait_for(lambda: not is_refused(place, "a/#"), "the reload")
    acl = (list(BOTH), list(ONE)) if of_token else (None, None)
    publisher = place.come(listener, f"bob-{listener}", ["x"] if of_token else None)
    with contextlib.closing(place.come(listener, user, acl[0])) as client:
        client.subscribe("a/#", "b/#", "end")
        client.disconnect()
    for topic in ("a/1", "b/1", "a/2", "end"):
        assert publisher.publish(topic) in (0, 0x10)
    before = place.refused()
    if not of_token:
        place.grant(ONE)
        place.cluster.wait_for(lambda: is_refused(place, "a/#"), "the reload")
    with contextlib.closing(place.come(listener, user, acl[1])) as client:
        assert taken(client) == ["b/1", "end"]
        place.cluster.wait_for(lambda: place.refused() >= before + 2, "two counted refusals")
        client.socket.settimeout(PATIENCE_S)
        for topic in ("a/3", "b/3", "end"):
            publisher.publish(topic)
        assert taken(client) == ["b/3", "end"]
        client.disconnect()
    if not of_token:  # the filter is gone for good: the right comes back, and it does not
        place.grant(BOTH)
        place.cluster.wait_for(lambda: not is_refused(place, "a/#"), "the reload")
    publisher.publish("a/4")
    publisher.publish("end")
    with contextlib.closing(place.come(listener, user, acl[0])) as client:
        assert taken(client) == ["end"]
    publisher.close()


def is_refused(place: Place, topic_filter: str) -> bool:
    """Return whether the rules of the files, which are all of one reload, do not grant a filter."""
    with contextlib.closing(place.come("file", "probe")) as client:
        try:
            client.subscribe_each(topic_filter)
        except AssertionError:
            return True
        return False
