"""The process of the HTTP service: its socket, its certificate, its links, and the tasks behind the pages.

It owns no cluster state: if it is killed, browsers must log in again, and nothing else is lost.
"""

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

import trio
from litestar import Router

from access.identity.peer_lists import read_peer_lists
from access.operators.audit_service import AuditService
from admin.alerts import ActiveAlert, ClearedAlert
from admin.http.app import BASE, make_application
from admin.http.audit_handlers import audit_handlers
from admin.http.callers import Caller, Callers, token_answer
from admin.http.changes import CommandRequests
from admin.http.command_handlers import verb_handlers
from admin.http.explanation_handlers import explanation_handlers
from admin.http.files import file_handlers, read_files
from admin.http.https_certificate import HttpsCertificate
from admin.http.live_cluster import LiveCluster
from admin.http.logins import BrowserSessions
from admin.http.mosquitto_handlers import mosquitto_handlers
from admin.http.operation_handlers import operation_handlers
from admin.http.operator_lists import OperatorLists, operator_files
from admin.http.overview_handlers import overview_handlers
from admin.http.overview_poller import OverviewPoller
from admin.http.problems import Problem, of_reply
from admin.http.query_handlers import query_handlers, waits
from admin.http.request_admission import RequestAdmission, RequestSlot
from admin.http.row_handlers import row_handlers
from admin.http.token_handlers import token_handlers
from admin.http.trace_handlers import trace_handlers
from admin.links import open_links
from admin.otlp import CollectorUrl, open_sender, register_sender
from admin.trace_export import TraceExport
from conf.admission import POOLS, AdmissionPool, KnownAddresses
from conf.errors import UserError
from conf.events import say
from conf.http1 import plain_server
from conf.http_connections import HttpConnections
from conf.settings import AdminConfig, NodeConfig
from wire.clock import boot_time
from wire.node.process import NodeProcess, own_version, run_process
from wire.node.startup_log import WaitingLog

__all__ = ["main"]

logger = logging.getLogger(__name__)

SERVER = plain_server()
TIER = "admin"
MAP_RETRY_S = 0.25  # between two attempts to read the map before this service is ready
TRACES_S = 5.0  # for one read of all traces
HEADERS_BYTES_MAX = 16 * 1024
KEEP_S = 15.0  # for the head of a request; RequestAdmission bounds the rest


def main(config: NodeConfig, ready: Callable[[dict[str, object]], None]) -> int:
    """Run the service until it is stopped; return the exit code."""
    assert isinstance(config, AdminConfig)

    async def service(process: NodeProcess) -> None:
        await AdminService(process, config).run()

    return run_process(config, TIER, ready, service, read_peer_lists)


class AdminService:
    """One process of the service."""

    def __init__(self, process: NodeProcess, config: AdminConfig) -> None:
        self._process = process
        self._config = config
        self._settings = config.admin
        settings = config.admin
        self._audit = AuditService(config.node, process.folder.path)
        self._logins = BrowserSessions(
            settings.session_s, settings.idle_s, settings.sessions_max, lambda: secrets.token_urlsafe(32)
        )
        self._https = HttpsCertificate(config)
        self._is_https = self._https.context is not None
        self._operators = OperatorLists()
        self._lists = operator_files(config, self._operators)

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            UserError: The address or the certificate is invalid, or no login is possible.
        """
        node, settings = self._config.node, self._settings
        listener = _bind(settings.bind, settings.port)
        host, port = listener.getsockname()[:2]
        async with (
            open_links(node.cluster, self._process.contexts, self._process.folder.cluster_id) as links,
            trio.open_nursery() as nursery,
        ):
            cluster = LiveCluster(links, node.seeds)
            if not settings.is_loopback and settings.client_ca is None:
                await self._require_login(cluster)
            watching = OverviewPoller(cluster, settings.history, _log_alerts)
            known = KnownAddresses()
            connections = HttpConnections(AdmissionPool(POOLS["admin_connections"], known.knows))
            application = self._application(cluster, watching)
            gate = RequestAdmission(
                application,
                settings.requests_max,
                _stay_of,
                known,
                connections.authenticated,
                lambda: self._https.hosts,
            )
            self._audit.register(self._process.metrics)
            self._process.reloaded = self._audit.reloaded
            self._process.reload.add(self._https, self._lists)
            self._process.watch(self._lists)
            self._register(gate, watching, connections)
            self._export_traces(cluster, nursery)
            nursery.start_soon(self._audit.run)
            nursery.start_soon(watching.run)
            nursery.start_soon(self._serve, gate, listener, connections)
            await self._wait_for_map(cluster)
            if not self._process.stopping.is_set():
                self._report_ready(host, port)
                await self._process.stopping.wait()
            nursery.cancel_scope.cancel()

    def _application(self, cluster: LiveCluster, watching: OverviewPoller) -> Any:
        async def check_token(digest: str) -> dict[str, Any] | None:
            reply = await cluster.ask("token check", {"digest": digest})
            return token_answer(reply.ok, reply.result, reply.error, reply.exit_code)

        async def cluster_of(caller: Caller, total_s: float) -> Any:
            return await cluster.for_queries(caller.role.name.lower(), total_s, caller.name)

        async def ask_verb(caller: Caller, verb: str) -> Any:
            reply = await cluster.ask(verb, {}, caller.name, caller.role.name.lower())
            if not reply.ok:
                raise of_reply(reply.error, reply.exit_code, changes=False)
            return reply.result

        callers = Callers(self._logins, check_token, boot_time, time.time, self._is_https)
        changes = CommandRequests(cluster, self._audit, boot_time)
        handlers = [
            *verb_handlers(changes.run),
            *row_handlers(cluster_of),
            *explanation_handlers(cluster_of),
            *query_handlers(cluster_of),
            *trace_handlers(cluster_of),
            *overview_handlers(watching),
            *mosquitto_handlers(cluster_of, watching),
            *operation_handlers(cluster_of, ask_verb, changes.run),
            *token_handlers(changes.run),
            *audit_handlers(self._settings.audits_dir),
        ]
        routes: list[Any] = [Router(BASE, route_handlers=handlers), *file_handlers(read_files())]
        name, settings = self._config.node.cluster, self._settings
        return make_application(
            name,
            own_version(),
            callers,
            routes,
            settings.session_s,
            self._is_https,
            self._operators.refusal,
            self._audit.note,
        )

    def _export_traces(self, cluster: LiveCluster, nursery: trio.Nursery) -> None:
        """Export the messages of traces as spans, if a collector is set.

        Raises:
            UserError: The libraries are not installed.
        """
        endpoint = self._settings.otlp_endpoint
        if not endpoint:
            return
        sender = open_sender(endpoint, self._config.node.cluster, own_version())

        async def as_operator() -> Any:
            try:
                return await cluster.for_queries("operator", TRACES_S, "otlp")
            except Problem as problem:
                raise UserError(problem.detail) from None

        export = TraceExport(as_operator, sender)
        register_sender(self._process.metrics, sender)
        self._process.reload.add(CollectorUrl(endpoint, sender))
        self._process.metrics.counter(
            "otlp_unread_total", "Reads of traces that found no node to query.", lambda: float(export.unread)
        )
        nursery.start_soon(sender.run)
        nursery.start_soon(export.run)

    async def _wait_for_map(self, cluster: LiveCluster) -> None:
        """Wait until a router has sent the map of this service's cluster, or until it is stopped.

        Raises:
            UserError: The routers belong to another cluster than the data folder.
        """
        waiting, reason = WaitingLog(logger), ""
        self._process.metrics.explain(lambda: reason)
        while not self._process.stopping.is_set():
            try:
                await cluster.follow()
                reason = ""
            except Problem as problem:
                reason = problem.detail
            self._process.check_cluster(cluster.links.known, cluster.links)
            waiting.look(boot_time(), reason)
            if not reason:
                return
            with trio.move_on_after(MAP_RETRY_S):
                await self._process.stopping.wait()

    async def _require_login(self, cluster: LiveCluster) -> None:
        """Refuse to serve a public address without a token or a client authority."""
        reply = await cluster.ask("token list", {"count": 1})
        if reply.ok and isinstance(reply.result, dict) and reply.result["tokens"]:
            return
        why = reply.error or "the cluster has no token"
        raise UserError(
            f"admin.bind = {self._settings.bind}: nobody could log in ({why}); create a token with `stratamq "
            "token create NAME`, or set admin.client_ca"
        )

    async def _serve(self, gate: RequestAdmission, listener: socket.socket, connections: HttpConnections) -> None:
        # Behind ``plain_server``, which selects the imported parts of anycorn.
        from anycorn.app_wrappers import ASGIWrapper
        from anycorn.tcp_server import TCPServer
        from anycorn.typing import LifespanState
        from anycorn.worker_context import WorkerContext

        application: Any = gate
        answers, config, worker = ASGIWrapper(application), _ServerConfig(), WorkerContext(None)

        async def serve(stream: Any) -> None:
            await TCPServer(answers, config, worker, LifespanState(), stream).run()

        await connections.serve(listener, serve, lambda: self._https.context)

    def _report_ready(self, host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        address = f"{'https' if self._is_https else 'http'}://{shown}:{port}/"
        addresses: dict[str, object] = {"admin": address}
        if self._settings.login_code:
            addresses["login"] = f"{address}#?code={self._logins.make_code(boot_time())}"
        self._process.ready(addresses)

    def _register(self, gate: RequestAdmission, watching: OverviewPoller, connections: HttpConnections) -> None:
        metrics = self._process.metrics
        metrics.pool("admin_connections", lambda: connections.pool.counts)
        metrics.pool("admin_requests", lambda: gate.pending.counts)
        metrics.counter("admin_refused_total", "Requests that found no free slot.", lambda: float(gate.refused))
        metrics.counter(
            "admin_misdirected_total",
            "Requests for a host that is not a name of the service (421).",
            lambda: float(gate.misdirected),
        )
        metrics.gauge("admin_browsers", "Browsers that are logged in.", lambda: float(len(self._logins)))
        metrics.gauge("admin_alarms", "Active alerts.", lambda: float(len(watching.alarms.active)))
        metrics.check("looked", lambda: watching.beat > 0)
        metrics.check("operator_lists", lambda: not self._lists.problem())


class _ServerConfig(SERVER.Config):  # type: ignore[misc,name-defined]
    """Bounds of the HTTP server."""

    def __init__(self) -> None:
        super().__init__()
        self.include_server_header = False
        self.loglevel = "WARNING"
        self.h11_max_incomplete_size = HEADERS_BYTES_MAX
        self.keep_alive_timeout = KEEP_S
        self.websocket_max_message_size = 1


def _stay_of(path: str, query: bytes) -> RequestSlot:
    if path == f"{BASE}/live":
        return RequestSlot.STREAM
    return RequestSlot.WAIT if waits(path, query) else RequestSlot.SHORT


def _bind(host: str, port: int) -> socket.socket:
    name = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in name else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen for admin on {host}:{port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def _log_alerts(began: list[ActiveAlert], ended: list[ClearedAlert]) -> None:
    """Log alerts."""
    for alarm in began:
        say(logger, "alarm.began", alarm=alarm.name, sentence=alarm.sentence, do=alarm.do)
    for one in ended:
        say(logger, "alarm.ended", alarm=one.name, sentence=json.dumps(one.sentence))
