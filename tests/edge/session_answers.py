"""Shared helpers: publishes of a session, packets of one type, and a durable CONNECT."""

from typing import Any

from mqtt.packets import Publish
from mqtt.properties import PropertyId
from tests.edge.edge_harness import Session

DURABLE: dict[int, object] = {PropertyId.SESSION_EXPIRY_INTERVAL: 100}


def publishes(session: Session) -> list[Any]:
    return [packet for packet in session.read() if isinstance(packet, Publish)]


def said(session: Session, kind: type) -> list[Any]:
    return [packet for packet in session.read() if isinstance(packet, kind)]
