"""Operators' orders to gossip: changes of the key ring on all members, step by step.

A rotation is three steps, each on every member: ``install`` the new key, ``use`` it, ``remove`` the old one. A step
that missed some members is reported as a failure with their names, because the next step may cut them off. So ``use``
is refused unless all live members have the key, and ``remove`` unless none seals with it; ``force`` overrides both.
Steps are idempotent, so a repeat is always safe. Dead members are contacted too, and reported: they return with their
old key file. Members that left are not contacted.

How ``stratamq membership keys ...`` reaches this: the router that serves the CLI's request holds a ``Gossip`` and
awaits one function; the report is plain data for tables and ``-o json``:: awaits one function; the report is plain data
for tables and ``-o json``::

    report = await rotate_keys(gossip, "install", key=parse_key(text_from_file_or_stdin))
    report = await rotate_keys(gossip, "use", key_id=bytes.fromhex(id_from_cli))
    report = await rotate_keys(gossip, "remove", key_id=bytes.fromhex(id_from_cli))
    report = await rotate_keys(gossip, "list")
    exit_code = 0 if report.complete else 1

The CLI reads a new key from a 0600 file or a file descriptor (``keyring.read_key_file``, ``read_key_descriptor``),
never from its arguments. For a node that is down, the same file functions change its key file in place.
"""

from dataclasses import dataclass
from typing import Protocol

import trio

from membership.exchange_streams import ExchangeFailure
from membership.key_requests import KeyOperation, KeyRequest, KeyResponse
from membership.keyring import key_id as id_of
from membership.members import MemberView

__all__ = ["KeyHolder", "KeyReport", "MemberKeys", "rotate_keys"]

ASKED_AT_A_TIME = 8
ATTEMPTS = 3  # per member
RETRY_PAUSE_S = 0.2


class KeyHolder(Protocol):
    """The part of ``Gossip`` that this module uses."""

    def members(self) -> list[MemberView]:
        """Return all members."""

    async def ask_keys(self, member: MemberView, request: KeyRequest) -> KeyResponse:
        """Send a request to one member."""


@dataclass(frozen=True, slots=True)
class MemberKeys:
    """One member's answer, or the reason for its absence."""

    name: str
    state: str
    ok: bool
    detail: str
    key_ids: tuple[str, ...] = ()  # hexadecimal, the sealing one first
    persisted: bool = True  # false: a restart of that member loses the step


@dataclass(frozen=True, slots=True)
class KeyReport:
    """All answers to one step, sorted by name."""

    operation: KeyOperation
    key_id: str  # hexadecimal; empty for a list
    members: tuple[MemberKeys, ...]
    refused: str = ""  # why the step was not executed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the members that did not execute the step."""
        return tuple(member.name for member in self.members if not member.ok)

    @property
    def complete(self) -> bool:
        """True if every member executed the step; otherwise the step failed."""
        return not self.refused and not self.failed


async def rotate_keys(
    gossip: KeyHolder, operation: KeyOperation, *, key: bytes = b"", key_id: bytes = b"", force: bool = False
) -> KeyReport:
    """Execute one step on every member, or list their keys.

    Args:
        gossip: Of the node that received the order; it is a member too.
        operation: The step.
        key: The secret, for ``install`` alone.
        key_id: Its public name, for ``use`` and ``remove``.
        force: Skip the check that ``use`` or ``remove`` cuts off no member.

    Raises:
        ValueError: The key or its id is missing, or given for a step that does not take it.
    """
    if (operation == "install") != bool(key) or (operation in ("use", "remove")) != bool(key_id):
        raise ValueError(
            f"{operation} takes {'a key' if operation == 'install' else 'a key id' if key_id else 'no key'}"
        )
    named = (id_of(key) if key else key_id).hex()
    if not force and operation in ("use", "remove"):
        before = await _send_to_all(gossip, KeyRequest("list"))
        refused = _objection(operation, named, before)
        if refused:
            return KeyReport(operation, named, before, refused)
    return KeyReport(operation, named, await _send_to_all(gossip, KeyRequest(operation, key_id, key)))


def _objection(operation: KeyOperation, named: str, members: tuple[MemberKeys, ...]) -> str:
    """Return which members a step would cut off, "" if none."""
    live = [member for member in members if member.state in ("alive", "suspect")]
    silent = [member.name for member in live if not member.key_ids]
    if silent:
        return f"not known which keys these members have: {', '.join(silent)}"
    if operation == "use":
        without = [member.name for member in live if named not in member.key_ids]
        return f"key {named} is not installed on: {', '.join(without)}" if without else ""
    sealing = [member.name for member in live if member.key_ids[0] == named]
    return f"key {named} still seals on: {', '.join(sealing)}" if sealing else ""


async def _send_to_all(gossip: KeyHolder, request: KeyRequest) -> tuple[MemberKeys, ...]:
    targets = [member for member in gossip.members() if member.state != "left" or member.is_self]
    answers: dict[str, MemberKeys] = {}
    limit = trio.CapacityLimiter(ASKED_AT_A_TIME)

    async def send(member: MemberView) -> None:
        async with limit:
            answers[member.name] = await _send_to_one(gossip, member, request)

    others = [member for member in targets if not member.is_self]
    async with trio.open_nursery() as nursery:
        for member in others:
            nursery.start_soon(send, member)
    # The local member last: a step may cut it off from the others.
    for member in targets:
        if member.is_self:
            await send(member)
    return tuple(answers[name] for name in sorted(answers))


async def _send_to_one(gossip: KeyHolder, member: MemberView, request: KeyRequest) -> MemberKeys:
    """Send to one member: once if it is dead, else until it answers or ``ATTEMPTS`` are used."""
    detail = ""
    for attempt in range(ATTEMPTS if member.state != "dead" else 1):
        if attempt:
            await trio.sleep(RETRY_PAUSE_S * attempt)
        try:
            response = await gossip.ask_keys(member, request)
        except ExchangeFailure as error:
            detail = str(error)
            continue
        if response.name != member.name:
            detail = f"{response.name} answers at its address"
            continue
        held = tuple(name.hex() for name in response.key_ids)
        return MemberKeys(member.name, member.state, response.ok, response.detail, held, response.persisted)
    return MemberKeys(member.name, member.state, False, detail)
