"""Reads of a session that edge tests share: its publishes, packets of one kind; and a durable CONNECT."""

from typing import Any

from mqtt.packets import Publish
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Session

DURABLE: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}


def publishes(session: Session) -> list[Any]:
    return [packet for packet in session.read() if isinstance(packet, Publish)]


def said(session: Session, kind: type) -> list[Any]:
    return [packet for packet in session.read() if isinstance(packet, kind)]
