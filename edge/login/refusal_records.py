"""Lines of the audit about clients that an edge refused, or ended because they are let in no more."""

import re
from typing import Protocol

from access.identity.principal import Principal
from access.operators.audit_chain import AuditRecord

__all__ = ["Refusable", "ended_record", "refusal_record"]

TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")  # JWT in the field of the user name


class _Seated(Protocol):
    address: str


class Refusable(Protocol):
    """A client, as far as a line about it goes."""

    principal: Principal | None
    client_id: str

    @property
    def seat(self) -> _Seated | None:
        """Its place; None in a loop without sockets."""


def refusal_record(client: Refusable, code: int, reason: str, user: str = "") -> AuditRecord:
    """Return the line about a client that gets ``code``; ``user`` is the name that it gave, if it proved none."""
    return _record("login", "refused", client, f"0x{code:02X} {reason}", user)


def ended_record(client: Refusable, kind: str, reason: str) -> AuditRecord:
    """Return the line about a client whose connection was ended."""
    return _record(kind, "done", client, reason)


def _record(kind: str, outcome: str, client: Refusable, reason: str, user: str = "") -> AuditRecord:
    principal = client.principal
    if TOKEN.fullmatch(user):
        user = "(a token)"  # clients of other brokers send it there, and who reads the audit could come in with it
    return AuditRecord(
        kind,
        outcome,
        actor=(principal.user if principal is not None else "") or user,
        address=client.seat.address if client.seat is not None else "",
        client_id=client.client_id,
        reason=reason,
    )
