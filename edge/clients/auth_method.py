"""Authentication methods as the edge uses them: exchanges of data, step by step.

Methods are chosen by the operator (``edge/clients/scram.py`` is one); ``edge/clients/authentication.py`` runs them.
Source: MQTT 5.0 section 4.12.
"""

from typing import Protocol

__all__ = ["Exchange", "Method", "Step"]


class Step(Protocol):
    """An answer of a method: go on with data, accept with data and an identity, or refuse."""

    @property
    def data(self) -> bytes:
        """For the client."""

    @property
    def identity(self) -> str:
        """Identity that the client proved; "" while the exchange goes on."""

    @property
    def refused(self) -> bool:
        """The exchange is over, without success."""


class Exchange(Protocol):
    """One exchange with one client."""

    def receive(self, data: bytes) -> Step:
        """Take the client's data and answer."""


class Method(Protocol):
    """An authentication method by its name."""

    @property
    def name(self) -> str:
        """As CONNECT and AUTH say it."""

    def begin(self) -> Exchange:
        """Start an exchange."""
