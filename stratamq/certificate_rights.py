"""Generates the table in ``docs/security.md`` of messages that a certificate of each tier may send.

The table is derived from the permissions of links, so every change of a message or a permission changes the page.
"""

from pathlib import Path

from wire.links.allowed import CELLS, FRAMES, Sender
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_EDGE, TIER_GATEWAY, TIER_OPERATOR, TIER_ROUTER, TIER_STORAGE

__all__ = ["certificate_rights", "insert_rights"]

BEGIN = "<!-- made by `python -m stratamq.manual` from wire/links/allowed.py -->\n"
END = "<!-- end of the table -->\n"
HEAD = """| certificate of | at | sent with the certificate alone | sent by a node in its role |
|---|---|---|---|
"""
SENDERS = (TIER_EDGE, TIER_STORAGE, TIER_ROUTER, TIER_OPERATOR, TIER_GATEWAY)
RECEIVERS = (TIER_ROUTER, TIER_STORAGE, TIER_EDGE)
JOINED = (FrameKind.CONTROL, FrameKind.CONTROLS, FrameKind.CONNECTS, FrameKind.CONNECT_ANSWERS)  # of messages
KIND_NAMES = {kind: name for name, kind in vars(FrameKind).items() if isinstance(kind, int)}
NOTHING = "nothing"
NO_LINK = "none: links are refused"


def certificate_rights(sender: str, receiver: str) -> tuple[list[str], list[str]]:
    """Return the messages that a certificate alone permits, and those that also require a role in the cluster map."""
    alone: list[str] = []
    in_role: list[str] = []
    for message, cell in CELLS.items():
        if (sender, receiver) in cell.tiers:
            is_alone = cell.sender is Sender.CERTIFIED and sender != TIER_ROUTER
            (alone if is_alone else in_role).append(message.__name__)
    kinds = [kind for kind, tiers in FRAMES.items() if (sender, receiver) in tiers and kind not in JOINED]
    in_role += [KIND_NAMES[kind] for kind in kinds]
    return sorted(alone), sorted(in_role)


def insert_rights(page: Path) -> str:
    """Return a page with the current table."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{page} has no markers for the table"
    return before + begin + _table() + end + after


def _table() -> str:
    rows = []
    for sender in SENDERS:
        for receiver in RECEIVERS:
            alone, in_role = certificate_rights(sender, receiver)
            if alone or in_role:
                is_linked = receiver == TIER_ROUTER or sender in (TIER_OPERATOR, TIER_GATEWAY)
                rows.append(f"| {sender} | {receiver} | {_cell(alone, is_linked)} | {_cell(in_role, True)} |\n")
    return HEAD + "".join(rows)


def _cell(names: list[str], is_linked: bool) -> str:
    return ", ".join(f"`{name}`" for name in names) or (NOTHING if is_linked else NO_LINK)
