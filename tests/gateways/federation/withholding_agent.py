"""Runs ``stratamq federate`` with an agent that acknowledges the messages of others without forwarding them."""

from __future__ import annotations

import runpy
from collections.abc import Iterable

import msgspec

from gateways.federation.agent import Agent
from gateways.federation.events import Event, FederationReady, NeighbourFrame
from gateways.federation.messages import TopicMessage, decode, encode

original_handle = Agent.handle


def handle_withholding(self: Agent, now: float, events: Iterable[Event] = ()) -> FederationReady:
    """Handle events, with each message readdressed to this agent only."""
    return original_handle(self, now, [_readdress_event(self.name, event) for event in events])


def _readdress_event(name: str, event: Event) -> Event:
    message = decode(event.data) if isinstance(event, NeighbourFrame) else None
    if isinstance(event, NeighbourFrame) and isinstance(message, TopicMessage) and not message.is_register:
        return NeighbourFrame(event.neighbour, encode(msgspec.structs.replace(message, to=(name,))))
    return event


if __name__ == "__main__":
    Agent.handle = handle_withholding  # type: ignore[method-assign]
    runpy.run_module("stratamq", run_name="__main__", alter_sys=True)
