"""Operators' orders to gossip: the key ring of all members, step by step.

A rotation is three steps, each on every member: ``install`` the new key, ``use`` it, ``remove`` the old one. A step
that did not reach everybody is reported as a failure with the names, as a member that misses it may be cut off by the
next. So ``use`` is refused unless every live member has the key, and ``remove`` unless none seals with it; ``force``
overrides both. Asking again is always safe: a step done twice is done once. Members that gossip holds dead are asked
too, and named: they come back with their old key file. Members that left are not asked.

How ``stratamq membership keys ...`` reaches this: the router that serves the CLI's request holds a ``Gossip`` and
awaits one function; the report is plain data for tables and ``-o json``::

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
    """The part of ``Gossip`` that this file needs."""

    def members(self) -> list[MemberView]:
        """Return every member."""

    async def ask_keys(self, member: MemberView, request: KeyRequest) -> KeyResponse:
        """Ask one member."""


@dataclass(frozen=True, slots=True)
class MemberKeys:
    """One member's answer, or why there is none."""

    name: str
    state: str
    ok: bool
    detail: str
    key_ids: tuple[str, ...] = ()  # hexadecimal, the sealing one first
    persisted: bool = True  # false: a restart of that member forgets the step


@dataclass(frozen=True, slots=True)
class KeyReport:
    """All answers to one step, sorted by name."""

    operation: KeyOperation
    key_id: str  # hexadecimal; empty for a list
    members: tuple[MemberKeys, ...]
    refused: str = ""  # why the step was not even tried

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the members that did not carry out the step."""
        return tuple(member.name for member in self.members if not member.ok)

    @property
    def complete(self) -> bool:
        """Every member carried out the step. Anything else is a failure."""
        return not self.refused and not self.failed


async def rotate_keys(
    gossip: KeyHolder, operation: KeyOperation, *, key: bytes = b"", key_id: bytes = b"", force: bool = False
) -> KeyReport:
    """Carry out one step on every member, or list their keys.

    Args:
        gossip: Of the node that was asked; it is a member too.
        operation: The step.
        key: The secret, for ``install`` alone.
        key_id: Its public name, for ``use`` and ``remove``.
        force: Skip the check that nobody is cut off by ``use`` or ``remove``.

    Raises:
        ValueError: The key or its id is missing, or given for a step that does not take it.
    """
    if (operation == "install") != bool(key) or (operation in ("use", "remove")) != bool(key_id):
        raise ValueError(
            f"{operation} takes {'a key' if operation == 'install' else 'a key id' if key_id else 'no key'}"
        )
    named = (id_of(key) if key else key_id).hex()
    if not force and operation in ("use", "remove"):
        before = await _ask_all(gossip, KeyRequest("list"))
        refused = _objection(operation, named, before)
        if refused:
            return KeyReport(operation, named, before, refused)
    return KeyReport(operation, named, await _ask_all(gossip, KeyRequest(operation, key_id, key)))


def _objection(operation: KeyOperation, named: str, members: tuple[MemberKeys, ...]) -> str:
    """Say who would be cut off by a step, or nothing."""
    live = [member for member in members if member.state in ("alive", "suspect")]
    silent = [member.name for member in live if not member.key_ids]
    if silent:
        return f"not known which keys these members have: {', '.join(silent)}"
    if operation == "use":
        without = [member.name for member in live if named not in member.key_ids]
        return f"key {named} is not installed on: {', '.join(without)}" if without else ""
    sealing = [member.name for member in live if member.key_ids[0] == named]
    return f"key {named} still seals on: {', '.join(sealing)}" if sealing else ""


async def _ask_all(gossip: KeyHolder, request: KeyRequest) -> tuple[MemberKeys, ...]:
    asked = [member for member in gossip.members() if member.state != "left" or member.is_self]
    answers: dict[str, MemberKeys] = {}
    limit = trio.CapacityLimiter(ASKED_AT_A_TIME)

    async def ask(member: MemberView) -> None:
        async with limit:
            answers[member.name] = await _ask_one(gossip, member, request)

    others = [member for member in asked if not member.is_self]
    async with trio.open_nursery() as nursery:
        for member in others:
            nursery.start_soon(ask, member)
    # Ourselves last: when a step cuts the asker off from the others, it has asked them all.
    for member in asked:
        if member.is_self:
            await ask(member)
    return tuple(answers[name] for name in sorted(answers))


async def _ask_one(gossip: KeyHolder, member: MemberView, request: KeyRequest) -> MemberKeys:
    """Ask one member; a dead one once, a live one until it answers or the attempts are over."""
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
