"""Connection options of a recording client."""

from __future__ import annotations

from dataclasses import dataclass

from stratamq.history.operations import NEVER_EXPIRES_S

__all__ = ["ClientOptions"]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Connection options; a workload changes fields per CONNECT with ``dataclasses.replace``.

    Attributes:
        silence_s: Close after this time without received bytes, with PINGREQs at a third of it.
        resend: Keep open publishes for the next connection; otherwise they become unknown immediately.
        window: Limit of in-flight QoS 1 and 2 publishes; the broker's Receive Maximum may lower it.
        heedless: Ignore the broker's Receive Maximum, as paho does after a reconnect.
        receive_maximum: Sent in CONNECT (MQTT 5) unless it is 0.
    """

    protocol_version: int = 5
    clean_start: bool = False
    session_expiry_interval_s: int = NEVER_EXPIRES_S
    keep_alive_s: int = 10
    silence_s: float = 3.0
    resend: bool = True
    window: int = 16
    heedless: bool = False
    receive_maximum: int = 0
    will_topic: str = ""
    will_payload: str = ""
    will_qos: int = 0
    will_delay_interval_s: int = 0

    @property
    def expiry_in_force_s(self) -> int:
        """Session expiry; MQTT 3.1.1 has only 0 (Clean Session) and unlimited."""
        if self.protocol_version == 5:
            return self.session_expiry_interval_s
        return 0 if self.clean_start else NEVER_EXPIRES_S
