"""Observers of the clients of one edge: opened and ended connections, added and removed filters.

Callers do not know the observers; an observer has no effect on the client.
"""

from collections.abc import Sequence
from typing import Protocol

from edge.clients.client import Client
from wire.messages.sessions import SessionOpened, SessionSubscription

__all__ = ["Lifecycle", "Observer"]


class Observer(Protocol):
    """Receives the events of clients."""

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Handle a written CONNACK 0x00."""

    def disconnected(self, client: Client) -> None:
        """Handle the closed socket of an open client."""

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Handle filters that SUBACK grants."""

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Handle filters that the client or new rules removed."""


class Lifecycle:
    """Calls each observer, in order of registration."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def watch(self, observer: Observer) -> None:
        """Add an observer."""
        self._observers += (observer,)

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Report that a client has CONNACK 0x00."""
        for observer in self._observers:
            observer.connected(client, opened)

    def disconnected(self, client: Client) -> None:
        """Report that a client with CONNACK 0x00 disconnected."""
        for observer in self._observers:
            observer.disconnected(client)

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Report that a client has SUBACK."""
        for observer in self._observers if taken else ():
            observer.subscribed(client, taken)

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Report that a client lost filters."""
        for observer in self._observers if names else ():
            observer.unsubscribed(client, names)
