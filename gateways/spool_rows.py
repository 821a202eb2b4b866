"""Writes to a gateway's spool, as cores hand them out: rows of a kind, by key.

Plain data. A core returns them with its other effects; its shell commits them in one transaction, synced, before it
performs any of those effects (``gateways/spool.py``).
"""

from typing import NamedTuple, TypeAlias

__all__ = ["Delete", "Put", "Write"]


class Put(NamedTuple):
    """A row to store; it replaces the one of its kind and key."""

    kind: str
    key: bytes
    value: bytes


class Delete(NamedTuple):
    """A row to delete; that there is none is no error."""

    kind: str
    key: bytes


Write: TypeAlias = Put | Delete
