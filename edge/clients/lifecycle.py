"""Observers of the clients of one edge: connections that open and end, filters that come and go.

Those who call it do not know who looks on; nothing that an observer does changes what happens to the client.
"""

from collections.abc import Sequence
from typing import Protocol

from edge.clients.client import Client
from wire.messages.sessions import SessionOpened, SessionSubscription

__all__ = ["Lifecycle", "Observer"]


class Observer(Protocol):
    """A part that looks on."""

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """Note that CONNACK 0x00 was written."""

    def disconnected(self, client: Client) -> None:
        """Note that the socket of an open client is gone."""

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """Note filters that SUBACK grants."""

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """Note filters that were taken from a client, by itself or by new rules."""


class Lifecycle:
    """Tells each observer, in their order."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def watch(self, observer: Observer) -> None:
        """Tell this one too from now on."""
        self._observers += (observer,)

    def connected(self, client: Client, opened: SessionOpened) -> None:
        """A client has CONNACK 0x00."""
        for observer in self._observers:
            observer.connected(client, opened)

    def disconnected(self, client: Client) -> None:
        """A client that had CONNACK 0x00 is gone."""
        for observer in self._observers:
            observer.disconnected(client)

    def subscribed(self, client: Client, taken: Sequence[SessionSubscription]) -> None:
        """A client has SUBACK."""
        for observer in self._observers if taken else ():
            observer.subscribed(client, taken)

    def unsubscribed(self, client: Client, names: Sequence[str]) -> None:
        """A client lost filters."""
        for observer in self._observers if names else ():
            observer.unsubscribed(client, names)
