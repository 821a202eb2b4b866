"""Helpers for policy scripts: a cluster with users, an operator, clients, and the check of P9."""

from dataclasses import replace
from functools import partial
from typing import Any

from stratamq.history.client_options import ClientOptions
from tests.simulation.cluster import Knobs
from tests.simulation.edge_process import USERS, EdgeProcess
from tests.simulation.policy_edge import quick_record
from tests.simulation.policy_operator import Operator
from tests.simulation.policy_watch import Sent, Watch
from tests.simulation.policy_work import PASSWORD, UserClient, rules_of
from tests.simulation.program import Program
from tests.simulation.scene import EPHEMERAL, Scene

__all__ = ["FENCE_S", "Users"]

FENCE_S = 4.0


class Users:
    """A scene with users ``u`` and ``v``, an operator, and a watch for actions after a settled command."""

    def __init__(self, **knobs: Any) -> None:
        edge = replace(Knobs().edge, fence_close_s=FENCE_S)
        self.scene = Scene(users=True, edge=edge, **knobs)
        self.cluster = self.scene.cluster
        routers = [name for name in self.cluster.nodes if name.startswith("r")]
        self.operator = Operator(self.cluster.world, "op", routers, self.cluster.rng("operator"), hasty=False)
        self.watch = Watch(lambda: self.cluster.scheduler.now)
        for name, node in self.cluster.nodes.items():
            if isinstance(node, EdgeProcess):
                node.written = partial(self.watch.written, name)  # type: ignore[method-assign]
        self.done("role put", role="all", rules=rules_of("#"))
        for user in ("u", "v"):
            self.done("role put", role=f"of-{user}", rules=rules_of("#"))
            self.done("user add", user=user, record=quick_record(PASSWORD), roles=[f"of-{user}"])
        self.scene.run(2 * FENCE_S)  # ends incarnations from before the election

    def begin(self, verb: str, **arguments: Any) -> Program:
        """Start a command of the operator."""
        return Program(self.cluster.scheduler, self.operator.settle(verb, **arguments))

    def done(self, verb: str, **arguments: Any) -> float:
        """Run a command until it is settled; return its duration."""
        began = self.cluster.scheduler.now
        program = self.begin(verb, **arguments)
        self.scene.until(lambda: program.done, 60.0)
        assert not self.operator.refusals
        return self.cluster.scheduler.now - began

    def take_role(self, user: str = "u") -> float:
        """Revoke all rights of a user's role; the watch starts at the command's return."""
        took_s = self.done("role put", role=f"of-{user}", rules=rules_of("nothing"))
        self.watch.deny(user, "role put", login=False)
        return took_s

    def disable(self, user: str = "u") -> float:
        """Disable a user; the watch starts at the command's return."""
        took_s = self.done("user disable", user=user)
        self.watch.deny(user, "user disable", login=True)
        return took_s

    def begin_to_disable(self, user: str = "u") -> Program:
        """Start disabling a user; ``disabled`` waits for the answer."""
        return self.begin("user disable", user=user)

    def disabled(self, verb: Program, within_s: float = 60.0, user: str = "u") -> None:
        """Wait for a command's return, and start the watch."""
        self.scene.until(lambda: verb.done, within_s)
        assert not self.operator.refusals
        self.watch.deny(user, "user disable", login=True)

    def named(self, user: str, host: str = "", options: ClientOptions = EPHEMERAL) -> UserClient:
        """Return an unconnected client of a user."""
        host = host or f"{user}-client"
        client = self.cluster.client(host, options, host, UserClient)
        assert isinstance(client, UserClient)
        client.sent, client.watch = Sent(user), self.watch
        self.watch.clients[host] = client.sent
        return client

    def client(self, user: str, edge: str, host: str = "", options: ClientOptions = EPHEMERAL) -> UserClient:
        """Return a connected client of a user."""
        client = self.named(user, host, options)
        client.connect(f"{edge}:{USERS}")
        self.scene.until(lambda: client.connected)
        return client

    def reader(self, user: str, edge: str, topic: str, host: str = "", qos: int = 0) -> UserClient:
        """Return a subscribed client."""
        client = self.client(user, edge, host)
        client.subscribe(topic, qos)
        self.scene.until(lambda: bool(client.subscribed))
        return client

    def judge(self) -> None:
        """Let some time pass, and check that no revoked right was used."""
        self.scene.run(2.0)
        assert not self.watch.violations, self.watch.violations
