"""The process of one federation agent: its folder, spool, broker, links, metrics page, status queries and signals."""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from random import Random
from typing import Any

import trio

from conf.data_folder import DataFolder
from conf.errors import ExitCode, UserError
from conf.federate_settings import FederateSettings
from conf.gateway_config import GatewayConfig
from conf.metrics import Metrics
from gateways.federation.agent import Agent
from gateways.federation.broker_endpoint import build_client_options, get_client_id, own_client_ids
from gateways.federation.events import SPOOL_KINDS, AgentSettings, DropNeighbour, NeighbourPolicy, SpoolMismatch
from gateways.federation.host import LocalBroker, log_filters
from gateways.federation.interest.cluster_list import ClusterList, build_cluster_list
from gateways.federation.interest.interest import INTEREST_KIND, Adapter, Interest
from gateways.federation.interest.mosquitto import MosquittoLog
from gateways.federation.interest.static import StaticFilters, set_configured
from gateways.federation.interest.stratamq import SessionEventAdapter
from gateways.federation.leadership_turns import AgentLoop
from gateways.federation.links import TIER_FEDERATE, FederationLinks, LinksOptions
from gateways.federation.report import register
from gateways.federation.session_rows import SENT, TAKEN
from gateways.process import open_pages
from gateways.spool import SpoolFile
from gateways.spool_thread import Spool
from mqtt.errors import MqttError
from mqtt.topics import validate_topic_filter
from wire.clock import boot_time
from wire.links.tls import CertificateFiles, check_certificate, link_contexts
from wire.messages.hello import NodeIdentity
from wire.node.process import collect_rarely, own_version

__all__ = ["STATUS_SOCKET", "main"]

logger = logging.getLogger(__name__)

SPOOL_FILE = "spool"
STATUS_SOCKET = "status.sock"
QUERY_S = 5.0  # timeout of a status connection
QUERY_BYTES_MAX = 256 * 1024
EXPIRE_S = 60.0
FILE_BOUND_FACTOR = 4  # factor of the file's bound over the core's: ids, registers and page overhead need more


def main(config: GatewayConfig[FederateSettings], ready: Callable[[dict[str, object]], None]) -> int:
    """Run one agent until a signal is received; return the exit code.

    Raises:
      UserError: An error of the configuration or the spool; the agent was not started.
    """
    folder = DataFolder(config.gateway.data_dir)
    try:
        return _open(config, ready)
    finally:
        folder.close()


def _open(config: GatewayConfig[FederateSettings], ready: Callable[[dict[str, object]], None]) -> int:
    settings = config.settings
    files = CertificateFiles(settings.certificate, settings.key, settings.authority)
    identity = (settings.federation, TIER_FEDERATE, settings.agent)
    _check_filters(settings)
    check_certificate(files, identity, datetime.datetime.now(datetime.UTC))
    owner = f"agent {settings.agent} of federation {settings.federation}"
    path = config.gateway.data_dir / SPOOL_FILE
    spool = Spool(SpoolFile(path, owner, settings.spool_bytes_max * FILE_BOUND_FACTOR), group_s=0.0)
    try:
        process = _Process(config, spool, files)
        return trio.run(process.run, ready)
    finally:
        spool.close()


def _check_filters(settings: FederateSettings) -> None:
    """Refuse invalid filters: neighbours would close the link that carries them."""
    places = [("federate.filters", settings.filters)]
    for name, each in settings.policies.items():
        places.append((f"federate.policies.{name}", (*each.imports, *each.exports)))
    for place, filters in places:
        for topic_filter in filters:
            try:
                validate_topic_filter(topic_filter)
            except MqttError as error:
                raise UserError(f"{place}: {topic_filter!r}: {error}", ExitCode.USAGE) from None
            if topic_filter.startswith("$"):
                raise UserError(
                    f"{place}: {topic_filter!r}: topics that begin with $ are not federated", ExitCode.USAGE
                )


class _Process:
    """All parts of one agent, joined."""

    def __init__(self, config: GatewayConfig[FederateSettings], spool: Spool, files: CertificateFiles) -> None:
        settings = config.settings
        random = Random()
        self.config, self.spool = config, spool
        try:
            rows = {kind: list(spool.load(kind)) for kind in SPOOL_KINDS}
            wall_ms = int(time.time() * 1000)
            self.agent = Agent(_agent_settings(settings), rows, boot_time(), wall_ms, random)
            self.loop = AgentLoop(self.agent, spool)
            self.adapter = _adapter(settings)
            self.adapter.interest.restore(spool.load(INTEREST_KIND))
            connections = build_client_options(settings, log_filters(self.adapter.filters), self._is_new)
            self.host = LocalBroker(
                connections,
                self.adapter,
                self.agent.marker_topic,
                self.loop.put_event,
                self.loop.hold,
                lambda: self.loop.events.is_full,
                time.time,
                random,
            )
            self.host.restore(list(spool.load(SENT)), list(spool.load(TAKEN)))
        except (SpoolMismatch, ValueError) as error:
            raise UserError(f"spool {config.gateway.data_dir / SPOOL_FILE}: {error}") from None
        set_configured(self.adapter.interest, settings.filters)
        self.list: ClusterList | None = None
        if settings.api and isinstance(self.adapter, SessionEventAdapter):
            self.list = build_cluster_list(
                settings, self.adapter, lambda: self.host.is_listening, self.host.take_interest
            )
        identity = NodeIdentity(settings.federation, settings.agent, TIER_FEDERATE, self.agent.incarnation)
        options = LinksOptions(
            identity, link_contexts(files), settings.neighbours, settings.accept, _policies(settings), settings.hello_s
        )
        self.links = FederationLinks(options, random, self.loop.put_events, self.loop.room)
        self.loop.host, self.loop.links = self.host, self.links

    def _is_new(self) -> bool:
        return self.agent.is_new and not self.host.counts["connections"]

    async def run(self, ready: Callable[[dict[str, object]], None]) -> int:
        """Run until a signal is received."""
        config, settings = self.config, self.config.settings
        metrics = Metrics("gateway", config.gateway.id, own_version())
        register(metrics, self.agent, self.host, self.links, self.loop, self.spool, self._list_why)
        stopping = trio.Event()
        listeners = await _listen(settings)
        port = listeners[0].socket.getsockname()[1]
        addresses: dict[str, object] = {"federate": f"{settings.bind}:{port}"}
        try:
            async with trio.open_nursery() as nursery:
                title = f"agent {settings.agent}"
                addresses |= await open_pages(nursery, config.metrics, metrics, stopping, title)
                self.host.take_interest()
                nursery.start_soon(self.loop.run)
                nursery.start_soon(self.spool.watch)
                nursery.start_soon(self.links.serve, listeners)
                for connection in self.host.connections:
                    nursery.start_soon(connection.client.run)
                nursery.start_soon(self._answer, config.gateway.data_dir / STATUS_SOCKET)
                nursery.start_soon(self._expire)
                if self.list is not None:
                    nursery.start_soon(self.list.run)
                collect_rarely()
                ready(addresses)
                await stopping.wait()
                for connection in self.host.connections:
                    await connection.client.leave()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            found: BaseException | None = group.subgroup(UserError)
            if found is None:
                raise
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from None
        return ExitCode.OK

    def _list_why(self) -> str:
        return self.list.why if self.list is not None else ""

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_S)
            self.adapter.interest.expire(time.time())
            self.host.take_interest()

    async def _answer(self, path: Any) -> None:
        """Answer queries of the command line: one line of JSON each."""
        path.unlink(missing_ok=True)
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(os.fspath(path))
        listener.listen(8)
        await trio.serve_listeners(self._serve_query, [trio.SocketListener(listener)])

    async def _serve_query(self, stream: trio.SocketStream) -> None:
        received = bytearray()
        try:
            with trio.move_on_after(QUERY_S):
                while not received.endswith(b"\n") and len(received) < QUERY_BYTES_MAX:
                    data = await stream.receive_some(65_536)
                    if not data:
                        break
                    received += data
                await stream.send_all(json.dumps(self._handle_query(received)).encode())
            await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _handle_query(self, received: bytes | bytearray) -> object:
        try:
            query = json.loads(received)
            verb, argument = str(query["verb"]), str(query.get("argument", ""))
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"error": "not a question"}
        match verb:
            case "status":
                away = self.links.missing()
                reasons = {each: self.links.reasons.get(each, "not tried yet") for each in away}
                found = self.agent.status()
                found["host"] = found["host"] and self.host.is_listening
                found["list_of_subscriptions"] = self._list_why() or ("whole" if self.list is not None else "not read")
                return found | {"away": reasons, "host_reason": self.host.reason}
            case "graph":
                return self.agent.graph()
            case "topics":
                return self.agent.topics()
            case "why":
                return self.agent.explain_topic(argument)
            case "forget":
                problem = self.agent.get_forget_problem(argument)
                if problem:
                    return {"error": problem}
                kept = self.agent.rows.count_pending(argument)
                self.loop.put_event(DropNeighbour(argument))
                return {"forgotten": argument, "messages_dropped": kept}
        return {"error": f"no such verb: {verb}"}


async def _listen(settings: FederateSettings) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(settings.port, host=settings.bind)
    except OSError as error:
        text = f"federate.port: {settings.bind}:{settings.port}: {error.strerror or error}"
        raise UserError(text, ExitCode.USAGE) from None


def _adapter(settings: FederateSettings) -> Adapter:
    client_id = get_client_id(settings)
    interest = Interest(own_client_ids(settings), settings.interest_s, settings.interests_max)
    match settings.host_kind:
        case "mosquitto":
            return MosquittoLog(interest, client_id)
        case "stratamq":
            return SessionEventAdapter(interest, settings.interests_max)
        case _:
            return StaticFilters(interest)


def _policies(settings: FederateSettings) -> dict[str, NeighbourPolicy]:
    return {
        name: NeighbourPolicy(each.imports, each.exports, each.messages_per_s, each.bytes_per_s, each.interests_max)
        for name, each in settings.policies.items()
    }


def _agent_settings(settings: FederateSettings) -> AgentSettings:
    return AgentSettings(
        federation=settings.federation,
        agent=settings.agent,
        addresses=settings.advertise,
        redundancy=settings.redundancy,
        hello_s=settings.hello_s,
        announce_s=settings.announce_s,
        missed=settings.missed,
        hold_s=settings.hold_s,
        dedup_s=settings.dedup_s,
        dedup_ids_max=settings.dedup_ids_max,
        spool_bytes_max=settings.spool_bytes_max,
        has_no_local=settings.no_local,
        has_identifiers=settings.protocol == "5",
        host_window=settings.host_window,
    )
