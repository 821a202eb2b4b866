"""A look at a broker for `bridge check`: connection, certificate, credentials and filters; no message is moved.

The visitor has the bridge's client ID with "-check" behind it: the bridge's own connection and session stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random

import trio

from conf.errors import UserError
from gateways.bridges.broker_endpoint import BrokerEndpoint
from gateways.bridges.publishers import NamedPublishers
from gateways.bridges.running import BridgeFinding
from gateways.client import GatewayClient
from mqtt.client_session import Accepted
from mqtt.packets import Publish, SubscriptionRequest

__all__ = ["check_door"]

CHECK_S_MAX = 15.0
RETAINED_NEVER = 2  # Retain Handling: do not send retained messages


class CheckConnection:
    """A ``ClientUser`` that looks and goes."""

    def __init__(self) -> None:
        self.accepted: Accepted | None = None
        self.reason = ""
        self.seen = trio.Event()

    def connected(self, accepted: Accepted) -> None:
        """Note that the broker takes us."""
        self.accepted = accepted
        self.seen.set()

    def parted(self, reason: str) -> None:
        """Note why not."""
        self.reason = self.reason or reason
        self.seen.set()

    def received(self, packet: Publish) -> None:
        """Leave a message alone."""

    def answered(self, token: int, reason_code: int) -> None:
        """Nothing was published."""

    def room(self) -> None:
        """Nothing waits."""


async def check_door(side: str, door: BrokerEndpoint, filters: Sequence[SubscriptionRequest]) -> list[BridgeFinding]:
    """Return what was found at each address of a door."""
    findings: list[BridgeFinding] = []
    for address in door.addresses:
        looked = dataclasses.replace(
            door,
            addresses=(address,),
            client_id=f"{door.client_id}-check",
            clean_start=True,
            will=None,
            session_expiry_s=0,
        )
        asked = [dataclasses.replace(each, retain_handling=RETAINED_NEVER) for each in filters]
        visitor = CheckConnection()
        client = GatewayClient(looked.options(asked), visitor, Random())
        text, ok = "does not answer", False
        try:
            with trio.move_on_after(CHECK_S_MAX):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.run)
                    await visitor.seen.wait()
                    if visitor.accepted is not None:
                        await client.granted.wait()
                    nursery.cancel_scope.cancel()
                ok = visitor.accepted is not None
                text = f"connected, {len(filters)} filters granted" if ok else visitor.reason
        except* UserError as group:
            text = "; ".join(str(error) for error in group.exceptions)
        if visitor.accepted is not None:
            problem = NamedPublishers(visitor.accepted.connack.properties).problem(door.named_filters or ())
            ok, text = (False, problem) if problem else (ok, text)
        findings.append(BridgeFinding(ok, f"{side} {address}", text))
    return findings
