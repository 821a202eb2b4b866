"""Metrics of an agent: events by name, current state, and the readiness explanation."""

from __future__ import annotations

from collections.abc import Callable

from conf.metrics import Metrics
from gateways.federation.agent import Agent
from gateways.federation.host import LocalBroker
from gateways.federation.leadership_turns import AgentLoop
from gateways.federation.links import FederationLinks
from gateways.spool_thread import Spool, register_spool_metrics

__all__ = ["register"]


def register(
    metrics: Metrics,
    agent: Agent,
    host: LocalBroker,
    links: FederationLinks,
    loop: AgentLoop,
    spool: Spool,
    list_why: Callable[[], str],
) -> None:
    """Register an agent's metrics; ``list_why`` returns why the list of subscriptions is incomplete."""
    register_spool_metrics(metrics, spool)
    metrics.counter(
        "federate_events_total",
        "Events at this agent, by name; dropped_<reason> counts drops.",
        lambda: {(name,): float(count) for name, count in agent.counts.items()},
        ("event",),
    )
    metrics.counter(
        "federate_host_total",
        "Events at its broker, by name; references_refused are Server References that were not followed.",
        lambda: {(name,): float(count) for name, count in host.counts.items()},
        ("event",),
    )
    metrics.counter(
        "federate_interest_total",
        "Interest events of the broker's clients, by name.",
        lambda: {(name,): float(count) for name, count in host.adapter.interest.counts.items()},
        ("event",),
    )
    metrics.counter(
        "federate_links_total",
        "Link events, by name.",
        lambda: {(name,): float(count) for name, count in links.counts.items()},
        ("event",),
    )
    metrics.pool("federation_links", lambda: links.handshakes.counts)
    metrics.gauge(
        "federate_queue_bytes",
        "Bytes of queued frames and messages; at 4 MiB neighbours are not read.",
        lambda: float(loop.events.octets),
    )
    metrics.gauge("federate_interests", "Filters that clients of the broker want.", lambda: len(host.adapter.interest))
    metrics.gauge(
        "federate_neighbour_up",
        "1 for a neighbour that is up.",
        lambda: {(name,): float(at.is_up) for name, at in agent.neighbours.items()},
        ("neighbour",),
    )
    metrics.gauge(
        "federate_round_trip_ms",
        "Round trip to a neighbour.",
        lambda: {(name,): at.round_trip_ms for name, at in agent.neighbours.items()},
        ("neighbour",),
    )
    metrics.gauge("federate_agents", "Known agents, including this one.", lambda: 1 + len(agent.overlay.agents))
    metrics.gauge("federate_messages_kept", "Messages in custody.", lambda: len(agent.rows.stored))
    metrics.check("broker", lambda: host.is_up)
    metrics.check("links", lambda: not links.missing())
    metrics.check("spool", lambda: not loop.is_full)
    metrics.check("interest", lambda: not list_why())
    metrics.explain(lambda: _readiness_problem(host, links, loop, list_why()))


def _readiness_problem(host: LocalBroker, links: FederationLinks, loop: AgentLoop, list_why: str) -> str:
    missing = [f"the broker ({host.reason})"] if not host.is_up else []
    missing += [f"neighbour {each} ({links.reasons.get(each, 'not tried yet')})" for each in links.missing()]
    missing += ["room in the spool"] if loop.is_full else []
    missing += [f"the list of subscriptions ({list_why})"] if list_why else []
    return "missing: " + ", ".join(missing) if missing else ""
