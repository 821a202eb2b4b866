"""Audit records of refused clients, and of clients closed after a loss of permission."""

import re
from typing import Protocol

from access.identity.principal import Principal
from access.operators.audit_chain import AuditRecord

__all__ = ["Refusable", "ended_record", "refusal_record"]

TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")  # a JWT in the user name field


class _Seated(Protocol):
    address: str


class Refusable(Protocol):
    """A client as its audit record uses it."""

    principal: Principal | None
    client_id: str

    @property
    def seat(self) -> _Seated | None:
        """Its slot; None in a loop without sockets."""


def refusal_record(client: Refusable, code: int, reason: str, user: str = "") -> AuditRecord:
    """Return the record of a refused client; ``user`` is the name that it sent, if it proved none."""
    return _record("login", "refused", client, f"0x{code:02X} {reason}", user)


def ended_record(client: Refusable, kind: str, reason: str) -> AuditRecord:
    """Return the record of a closed client."""
    return _record(kind, "done", client, reason)


def _record(kind: str, outcome: str, client: Refusable, reason: str, user: str = "") -> AuditRecord:
    principal = client.principal
    if TOKEN.fullmatch(user):
        user = "(a token)"  # clients of other brokers send tokens there; a reader of the audit could use it
    return AuditRecord(
        kind,
        outcome,
        actor=(principal.user if principal is not None else "") or user,
        address=client.seat.address if client.seat is not None else "",
        client_id=client.client_id,
        reason=reason,
    )
