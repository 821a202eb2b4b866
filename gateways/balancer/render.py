"""Configurations of HAProxy, NGINX and Envoy, generated from the edges of the map. Text in, text out.

TLS passes through: the edges terminate it and verify client certificates. docs/balancing/ has tested files for other
set-ups (TLS termination at the proxy, stick tables, VRRP).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf.errors import ExitCode, UserError

__all__ = ["KINDS", "BackendServer", "render", "targets"]

ENVOY = "type.googleapis.com/envoy.extensions"
ENVOY_MAX = 1_000_000  # Envoy allows 1024 connections to all edges together by default
IDLE_TIMEOUT_S = 7_200  # idle timeout; above 1.5 times edge.keep_alive_max_s
WILDCARDS = ("0.0.0.0", "[::]", "")


@dataclass(frozen=True, slots=True)
class BackendServer:
    """One edge: host and port of the listener."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BalancerConfigPlan:
    """Input of a configuration.

    Attributes:
      targets: Edges, by name.
      listener: Name of the edges' listener.
      bind: Address and port of the proxy.
      health_port: Port of /readyz at each edge; 0: only a TCP check of the listener.
      proxy: The listener expects PROXY headers.
    """

    targets: Sequence[BackendServer]
    listener: str
    bind: str
    health_port: int
    proxy: bool


def targets(nodes: Iterable[Mapping[str, Any]], listener: str) -> list[BackendServer]:
    """Return the edges of `stratamq node list` that may receive clients, by name."""
    found = []
    for node in nodes:
        address = (node.get("clients") or {}).get(listener, "")
        host, _, port = address.rpartition(":")
        if node.get("tier") == "edge" and node.get("state") == "active" and host not in WILDCARDS and port.isdecimal():
            found.append(BackendServer(str(node["node"]), host, int(port)))
    return sorted(found, key=lambda target: target.name)


def render(kind: str, to: Sequence[BackendServer], listener: str, bind: str, health_port: int, *, proxy: bool) -> str:
    """Return the configuration.

    Raises:
      UserError: Unknown kind or invalid address; exit code 2.
    """
    if kind not in KINDS:
        raise UserError(f"render {kind}: expected {', '.join(KINDS)}", ExitCode.USAGE)
    if not bind.rpartition(":")[2].isdecimal():
        raise UserError(f"--bind {bind}: expected host:port, or :port for all addresses", ExitCode.USAGE)
    heading = f"# Written by `stratamq balance render {kind}` from the map: {len(to)} edges.\n"
    return heading + KINDS[kind](BalancerConfigPlan(to, listener, bind, health_port, proxy))


def _haproxy(plan: BalancerConfigPlan) -> str:
    check = f" check port {plan.health_port}" if plan.health_port else " check"
    lines = [
        "defaults",
        "    mode tcp",
        "    timeout connect 3s",
        f"    timeout client {IDLE_TIMEOUT_S}s",
        f"    timeout server {IDLE_TIMEOUT_S}s",
        f"frontend {plan.listener}",
        f"    bind {plan.bind}",
        f"    default_backend {plan.listener}_edges",
        f"backend {plan.listener}_edges",
        "    balance leastconn",
        "    option redispatch",
        "    retries 3",
        *(["    option httpchk GET /readyz"] if plan.health_port else []),
        f"    default-server{check} inter 1s fall 2 rise 1 slowstart 10s{' send-proxy-v2' if plan.proxy else ''}",
        *(f"    server {target.name} {target.host}:{target.port}" for target in plan.targets),
    ]
    return "\n".join(lines) + "\n"


def _nginx(plan: BalancerConfigPlan) -> str:
    """Return a block for the main context; NGINX Open Source has no active health checks."""
    servers = [
        f"        server {target.host}:{target.port} max_fails=1 fail_timeout=2s;  # {target.name}"
        for target in plan.targets
    ] or ["        server 127.0.0.1:9 down;  # no edge"]
    bind = plan.bind.removeprefix(":")
    lines = [
        "stream {",
        f"    upstream {plan.listener}_edges {{",
        "        least_conn;",
        *servers,
        "    }",
        "    server {",
        f"        listen {bind};",
        "        proxy_connect_timeout 3s;",
        "        proxy_next_upstream on;",
        f"        proxy_timeout {IDLE_TIMEOUT_S}s;",
        *(["        proxy_protocol on;"] if plan.proxy else []),
        f"        proxy_pass {plan.listener}_edges;",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _envoy(plan: BalancerConfigPlan) -> str:
    host, _, port = plan.bind.rpartition(":")
    endpoints = [
        f"        - endpoint: {{address: {{socket_address: {{address: {target.host.strip('[]')}, "
        f"port_value: {target.port}}}}}"
        + (f", health_check_config: {{port_value: {plan.health_port}}}" if plan.health_port else "")
        + f"}}  # {target.name}"
        for target in plan.targets
    ]
    transport = [
        "    transport_socket:",
        "      name: envoy.transport_sockets.upstream_proxy_protocol",
        "      typed_config:",
        f'        "@type": {ENVOY}.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport',
        "        config: {version: V2}",
        "        transport_socket:",
        "          name: envoy.transport_sockets.raw_buffer",
        "          typed_config:",
        '            "@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer',
    ]
    check = "http_health_check: {path: /readyz}" if plan.health_port else "tcp_health_check: {}"
    lines = [
        "static_resources:",
        "  listeners:",
        f"  - name: {plan.listener}",
        f"    address: {{socket_address: {{address: {host or '0.0.0.0'}, port_value: {port}}}}}",
        "    filter_chains:",
        "    - filters:",
        "      - name: envoy.filters.network.tcp_proxy",
        "        typed_config:",
        '          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy',
        f"          stat_prefix: {plan.listener}",
        f"          cluster: {plan.listener}_edges",
        f"          idle_timeout: {IDLE_TIMEOUT_S}s",
        "          max_connect_attempts: 3",
        "  clusters:",
        f"  - name: {plan.listener}_edges",
        "    type: STATIC",
        "    connect_timeout: 3s",
        "    lb_policy: LEAST_REQUEST",
        f"    circuit_breakers: {{thresholds: [{{max_connections: {ENVOY_MAX}, max_pending_requests: {ENVOY_MAX}}}]}}",
        "    health_checks:",
        f"    - {{timeout: 1s, interval: 1s, unhealthy_threshold: 2, healthy_threshold: 1, {check}}}",
        *(transport if plan.proxy else []),
        "    load_assignment:",
        f"      cluster_name: {plan.listener}_edges",
        "      endpoints:",
        "      - lb_endpoints:" if endpoints else "      - lb_endpoints: []",
        *endpoints,
    ]
    return "\n".join(lines) + "\n"


KINDS = {"haproxy": _haproxy, "nginx": _nginx, "envoy": _envoy}
