"""Figures of an agent on its page: what happened by name, what stands, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable

from conf.metrics import Metrics
from gateways.federation.agent import Agent
from gateways.federation.host import LocalBroker
from gateways.federation.leadership_turns import LeadershipTurns
from gateways.federation.links import FederationLinks
from gateways.spool_thread import Spool, register_spool_metrics

__all__ = ["register"]


def register(
    metrics: Metrics,
    agent: Agent,
    host: LocalBroker,
    links: FederationLinks,
    turns: LeadershipTurns,
    spool: Spool,
    list_why: Callable[[], str],
) -> None:
    """Show an agent on the page of its process; ``list_why`` returns what the list of subscriptions lacks."""
    register_spool_metrics(metrics, spool)
    metrics.counter(
        "federate_events_total",
        "What happened at this agent, by name; dropped_<reason> is what was dropped.",
        lambda: {(name,): float(count) for name, count in agent.counts.items()},
        ("event",),
    )
    metrics.counter(
        "federate_host_total",
        "What happened at its broker, by name; references_refused are Server References that were not followed.",
        lambda: {(name,): float(count) for name, count in host.counts.items()},
        ("event",),
    )
    metrics.counter(
        "federate_interest_total",
        "What was read of the broker's clients, by name.",
        lambda: {(name,): float(count) for name, count in host.adapter.interest.counts.items()},
        ("event",),
    )
    metrics.counter(
        "federate_links_total",
        "What happened to links, by name.",
        lambda: {(name,): float(count) for name, count in links.counts.items()},
        ("event",),
    )
    metrics.pool("federation_links", lambda: links.handshakes.counts)
    metrics.gauge(
        "federate_queue_bytes",
        "Frames and messages that wait for a turn; neighbours are not read while it has 4 MiB.",
        lambda: float(turns.events.octets),
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
    metrics.gauge("federate_agents", "Agents that are known, this one included.", lambda: 1 + len(agent.overlay.agents))
    metrics.gauge("federate_messages_kept", "Messages in custody.", lambda: len(agent.rows.stored))
    metrics.check("broker", lambda: host.is_up)
    metrics.check("links", lambda: not links.missing())
    metrics.check("spool", lambda: not turns.is_full)
    metrics.check("interest", lambda: not list_why())
    metrics.explain(lambda: _waits_for(host, links, turns, list_why()))


def _waits_for(host: LocalBroker, links: FederationLinks, turns: LeadershipTurns, list_why: str) -> str:
    away = [f"the broker ({host.reason})"] if not host.is_up else []
    away += [f"neighbour {each} ({links.reasons.get(each, 'not tried yet')})" for each in links.missing()]
    away += ["room in the spool"] if turns.is_full else []
    away += [f"the list of subscriptions ({list_why})"] if list_why else []
    return "away: " + ", ".join(away) if away else ""
