"""Check of a broker for `bridge check`: connection, certificate, credentials and filters; no message is moved.

The client ID is the bridge's with the suffix "-check": the bridge's own connection and session are not affected.
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

__all__ = ["check_endpoint"]

CHECK_S_MAX = 15.0
RETAINED_NEVER = 2  # Retain Handling: do not send retained messages


class CheckConnection:
    """A ``ClientUser`` that connects once."""

    def __init__(self) -> None:
        self.accepted: Accepted | None = None
        self.reason = ""
        self.done = trio.Event()

    def connected(self, accepted: Accepted) -> None:
        """Record the acceptance."""
        self.accepted = accepted
        self.done.set()

    def disconnected(self, reason: str) -> None:
        """Record the failure."""
        self.reason = self.reason or reason
        self.done.set()

    def received(self, packet: Publish) -> None:
        """Ignore a message."""

    def answered(self, token: int, reason_code: int) -> None:
        """No publish is sent."""

    def writable(self) -> None:
        """No output is pending."""


async def check_endpoint(
    side: str, endpoint: BrokerEndpoint, filters: Sequence[SubscriptionRequest]
) -> list[BridgeFinding]:
    """Return one finding for each address of an endpoint."""
    findings: list[BridgeFinding] = []
    for address in endpoint.addresses:
        checked = dataclasses.replace(
            endpoint,
            addresses=(address,),
            client_id=f"{endpoint.client_id}-check",
            clean_start=True,
            will=None,
            session_expiry_s=0,
        )
        requests = [dataclasses.replace(each, retain_handling=RETAINED_NEVER) for each in filters]
        user = CheckConnection()
        client = GatewayClient(checked.options(requests), user, Random())
        text, ok = "does not answer", False
        try:
            with trio.move_on_after(CHECK_S_MAX):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.run)
                    await user.done.wait()
                    if user.accepted is not None:
                        await client.granted.wait()
                    nursery.cancel_scope.cancel()
                ok = user.accepted is not None
                text = f"connected, {len(filters)} filters granted" if ok else user.reason
        except* UserError as group:
            text = "; ".join(str(error) for error in group.exceptions)
        if user.accepted is not None:
            problem = NamedPublishers(user.accepted.connack.properties).problem(endpoint.named_filters or ())
            ok, text = (False, problem) if problem else (ok, text)
        findings.append(BridgeFinding(ok, f"{side} {address}", text))
    return findings
