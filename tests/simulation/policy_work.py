"""Users of the cluster in one seed: operators that revoke and restore rights, and clients that use them continuously.

Each user has a role, a group, two clients and an operator. The operator revokes one right in one of many ways, waits
until the command is settled, then restores it after a while. The clients connect, publish and subscribe at random
edges, as fast as they can. An observer that keeps its rights receives all their messages and publishes to them.
``policy_watch.py`` checks for forbidden actions.
"""

import random
from dataclasses import replace
from typing import Any, NamedTuple

from mqtt.packets import Connect
from router.policy.pruning import CHECK_S
from stratamq.history.operations import Header, Kind
from stratamq.history.writer import HistoryWriter
from tests.simulation.cluster import Cluster
from tests.simulation.edge_process import USERS, EdgeProcess
from tests.simulation.policy_edge import quick_record
from tests.simulation.policy_operator import PARTIAL_MAX_S, Operator
from tests.simulation.policy_watch import Sent, Watch
from tests.simulation.program import Program, sleep
from tests.simulation.router_process import EPOCH_S, RouterProcess
from tests.simulation.workload import EPHEMERAL, WorkingClient

__all__ = ["PASSWORD", "PolicyWork", "UserClient", "rules_of"]

USER_COUNT = 3
OBSERVER = "observer"
ALL_ACTIONS = 31
PASSWORD, OTHER = b"good", b"other"
DURABLE = replace(EPHEMERAL, clean_start=False, session_expiry_interval_s=300)
PACE_S = 0.1

Order = tuple[str, dict[str, Any]]


class ClientTransport(NamedTuple):
    """One way to revoke a right, and to restore it."""

    take: Order
    give: Order
    login: bool  # login is denied too


class _Nowhere:
    """Discards the histories of these clients, which are checked immediately."""

    def write(self, data: bytes, /) -> None:
        """Discard."""


class UserClient(WorkingClient):
    """A client with a user's login."""

    sent: Sent
    watch: Watch | None = None

    def _connect_packet(self) -> Connect:
        packet = super()._connect_packet()
        packet.username, packet.password = self.sent.user, PASSWORD
        packet.client_id = f"{self.client_id}-{self.sent.life}"
        return packet

    def _invoke(self, kind: Kind, **fields: Any) -> Any:
        if kind is Kind.PUBLISH:
            now = self.world.scheduler.now
            self.sent.payloads[fields["payload"]] = now
            self.sent.identifiers[fields["packet_identifier"]] = now
            if self.watch is not None:
                self.watch.authors[fields["payload"]] = self.sent
        return super()._invoke(kind, **fields)


def rules_of(*filters: str) -> list[dict[str, Any]]:
    """Return rules that allow all actions with these topics."""
    return [{"allow": True, "actions": ALL_ACTIONS, "filter": text} for text in filters]


def ways_of(user: str) -> tuple[ClientTransport, ...]:
    """Return all ways to revoke a user's rights."""
    role, group, about = f"role-{user}", f"group-{user}", {"user": user}
    ban: dict[str, Any] = {"kind": "user", "value": user}
    every = rules_of(f"p/{user}/#", f"d/{user}/#")
    return (
        ClientTransport(("user disable", about), ("user enable", about), True),
        ClientTransport(("ban add", ban), ("ban del", ban), True),
        ClientTransport(("ban add", {**ban, "for_s": 600.0}), ("ban del", ban), True),
        ClientTransport(("user delete", about), ("user add", _user(user)), True),
        ClientTransport(
            ("user password", {**about, "record": quick_record(OTHER)}),
            ("user password", {**about, "record": quick_record(PASSWORD)}),
            True,
        ),
        ClientTransport(
            ("role put", {"role": role, "rules": rules_of("nothing")}),
            ("role put", {"role": role, "rules": every}),
            False,
        ),
        ClientTransport(("user change", {**about, "groups": []}), ("user change", {**about, "groups": [group]}), False),
        ClientTransport(
            ("group put", {"group": group, "roles": []}), ("group put", {"group": group, "roles": [role]}), False
        ),
    )


def _user(user: str) -> dict[str, Any]:
    return {"user": user, "record": quick_record(PASSWORD), "groups": [f"group-{user}"]}


class PolicyWork:
    """Operators and clients of one seed; the work begins when all users exist."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.watch = Watch(lambda: cluster.scheduler.now)
        self._routers = [name for name, node in cluster.nodes.items() if isinstance(node, RouterProcess)]
        self._edges = [name for name, node in cluster.nodes.items() if isinstance(node, EdgeProcess)]
        self._writer = HistoryWriter(_Nowhere(), Header(workload="simulation", seed=0, broker=("sim",), settings={}))
        self._users = [f"u{number}" for number in range(1, USER_COUNT + 1)]
        self._working = True
        self._numbers = 0
        self.strangers = 0  # bans and revocations with an end
        self._operators: list[Operator] = []
        self._programs: list[Program] = []
        self._clients: list[UserClient] = []
        for name in self._edges:
            edge = cluster.edge(name)
            edge.written = lambda end, data, name=name: self.watch.written(name, end, data)  # type: ignore[method-assign,misc]
        self._prepare()
        for user in self._users:
            self._run(self._operate(user))
            for kind, options in (("a", EPHEMERAL), ("b", DURABLE)):
                client = self._client(f"{user}-{kind}", user, options)
                self._run(self._use(client, f"d/{user}/#", [f"p/{user}/x"]), stays=True)
        self._run(self._ban_strangers())
        observer = self._client(OBSERVER, OBSERVER, EPHEMERAL)
        self._run(self._use(observer, "p/#", [f"d/{user}/x" for user in self._users]), stays=True)

    def _run(self, program: Any, *, stays: bool = False) -> Program:
        running = Program(self.cluster.scheduler, program)
        if not stays:
            self._programs.append(running)
        return running

    def _operator(self, name: str) -> Operator:
        operator = Operator(self.cluster.world, f"op-{name}", self._routers, self.cluster.rng(f"policy/{name}"))
        self._operators.append(operator)
        return operator

    def _client(self, host: str, user: str, options: Any) -> UserClient:
        client = UserClient(self.cluster.world, self._writer, host, host, options)
        client.sent, client.watch = Sent(user), self.watch
        self.watch.clients[host] = client.sent
        self._clients.append(client)
        return client

    # -- operators

    def _prepare(self) -> None:
        """Create roles, groups and users."""
        first = self._run(self._make_users(self._operator("first")))
        self.cluster.until(lambda: first.done, 60.0)

    async def _make_users(self, operator: Operator) -> None:
        await operator.settle("role put", role="all", rules=rules_of("#"))
        await operator.settle("user add", user=OBSERVER, record=quick_record(PASSWORD), roles=["all"])
        for user in self._users:
            await operator.settle("role put", role=f"role-{user}", rules=rules_of(f"p/{user}/#", f"d/{user}/#"))
            await operator.settle("group put", group=f"group-{user}", roles=[f"role-{user}"])
            await operator.settle("user add", **_user(user))

    async def _operate(self, user: str) -> None:
        operator, rng = self._operator(user), self.cluster.rng(f"policy/{user}/ways")
        ways = ways_of(user)
        while self._working:
            await sleep(rng.expovariate(1.0))
            way = rng.choice(ways)
            verb, arguments = way.take
            if not await operator.settle(verb, **arguments):
                continue
            self.watch.deny(user, verb, login=way.login)
            if verb == "user delete":
                self._begin_life(user)
            await sleep(rng.choice((0.05, 0.5, 2.0, 6.0)))
            self.watch.allow(user)
            verb, arguments = way.give
            await operator.settle(verb, **arguments)

    async def _ban_strangers(self) -> None:
        """Create bans and revocations with an end, which the leader removes."""
        operator, rng = self._operator("warden"), self.cluster.rng("policy/warden/ways")
        while self._working:
            await sleep(rng.expovariate(0.5))
            ends = {"for_s": rng.choice((0.1, 1.0, 3.0))}
            kind, what = rng.choice((("client_id", "ban add"), ("token", "revoke")))
            for _ in range(rng.choice((1, 3))):
                self.strangers += await operator.settle(what, kind=kind, value=f"stranger-{self.strangers}", **ends)

    def _begin_life(self, user: str) -> None:
        """Use other client identifiers: sessions of the former ones belong to the deleted user."""
        for client in self._clients:
            if client.sent.user == user:
                client.sent.life += 1

    # -- clients

    async def _use(self, client: UserClient, wanted: str, topics: list[str]) -> None:
        rng = self.cluster.rng(f"policy/{client.process}")
        while True:
            client.connect(f"{rng.choice(self._edges)}:{USERS}")
            await client.change.until(lambda: client.connected or not client.trying)
            if client.connected:
                client.subscribe(wanted, 1)
                await self._publish(client, rng, wanted, topics)
                client.drop()
            await sleep(rng.uniform(0.02, 0.25))

    async def _publish(self, client: UserClient, rng: random.Random, wanted: str, topics: list[str]) -> None:
        """Publish, with retries of refused messages, until the connection ends or is dropped at random."""
        while client.connected and (self._rests() or rng.random() > 0.02):
            if not self._rests():
                self._numbers += 1
                client.publish(rng.choice(topics), f"{client.sent.user}-{self._numbers}", rng.choice((0, 0, 1, 2)))
            if not client.asking and (wanted not in client.subscribed or rng.random() < 0.05):
                client.subscribe(wanted, 1)
            await client.change.until(lambda: not client.connected, rng.uniform(0.0, 2 * PACE_S))

    def _rests(self) -> bool:
        return not self._working and all(program.done for program in self._programs)

    # -- the end

    def finish(self) -> None:
        """Let operators finish; from here on each answer arrives in time."""
        self._working = False
        for operator in self._operators:
            operator.longest_s = 0.0

    def settled(self) -> bool:
        """Whether every right is restored and used by its user."""
        return all(program.done for program in self._programs) and all(
            client.connected and client.subscribed for client in self._clients
        )

    def unsettled(self) -> str:
        """Return the missing parts."""
        away = [client.process for client in self._clients if not (client.connected and client.subscribed)]
        return f"{sum(not program.done for program in self._programs)} operators wait; {away} are not served"

    @property
    def verbs(self) -> int:
        """Number of settled commands."""
        return sum(operator.settled for operator in self._operators)

    def judge(self) -> list[str]:
        """Return the violations, after the quiet phase."""
        wrong = list(self.watch.violations)
        for operator in self._operators:
            wrong += operator.refusals
            if operator.longest_s > PARTIAL_MAX_S:
                wrong.append(f"{operator.host} waited {operator.longest_s:.1f} s for an answer with all nodes there")
        asker = self._operator("last")
        asked = self._run(asker.settle("policy status"), stays=True)
        end = self.cluster.scheduler.now + PARTIAL_MAX_S
        while not asked.done and self.cluster.scheduler.now < end:
            self.cluster.run(0.1)
        if not asked.done or asker.partial or asker.refusals:
            wrong.append(f"`policy status` is not settled at rest: {asker.refusals or asker.partial}")
        routers = [self.cluster.router(name) for name in self._routers]
        epochs = {router.node: router.core.policy.epoch for router in routers if router.up}
        wrong += [f"routers at rest have policies of {epochs}"] * (len(set(epochs.values())) > 1)
        wrong += self._kept()
        return wrong

    def _kept(self) -> list[str]:
        """Return the routers that still store long expired records."""
        end = self.cluster.scheduler.now + CHECK_S + 5.0
        while (keep := self._keeping()) and self.cluster.scheduler.now < end:
            self.cluster.run(0.1)
        return [f"{router} keeps what has ended" for router in keep]

    def _keeping(self) -> list[str]:
        over = EPOCH_S + self.cluster.scheduler.now - self.cluster.knobs.prune_late_s
        routers = [self.cluster.router(name) for name in self._routers]
        return [router.node for router in routers if router.up and router.core.policy.machine.tables.has_ended(over)]
