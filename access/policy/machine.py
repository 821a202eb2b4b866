"""The policy's state machine: applies committed commands and returns steps. The authority on logins and rights.

Deterministic: the same policy and command give the same step on every router. An invalid command changes nothing and
returns the reason; so does one out of range (``access/policy/bounds.py``) or one whose rule raises. It shares the
routers' log with the map's machine but no state; its epoch is ``policy_epoch``. Source: docs/adr/0019, docs/adr/0034.
"""

import logging

import msgspec

from access.policy import bounds
from access.policy.bounds import out_of_range
from access.policy.changes import PolicyChanges, Tables
from access.policy.commands import PolicyCommand, PolicyOrder, SimpleCommand
from access.policy.records import User
from access.policy.rules import RULES
from access.policy.step import PolicyStep, StepOutcome, digest_behind
from conf.events import say
from wire.decoding import Payload, strictly
from wire.messages.ranges import Digest

__all__ = ["ORDERS_MAX", "PolicyMachine", "PolicyOrderOutcome", "PolicyOutcome"]

logger = logging.getLogger(__name__)

ORDERS_MAX = 1_000  # stored outcomes: a command line retries an order for seconds


class PolicyOrderOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Outcome of an operator's order; ``epoch`` is the policy's after it."""

    refusal: str
    epoch: int


class PolicyOutcome(msgspec.Struct, frozen=True):
    """Effect of a command: the step, or the refusal; neither if nothing changed."""

    step: PolicyStep | None = None
    refusal: str = ""
    order: PolicyOrderOutcome | None = None  # first outcome of a repeated order


class _State(msgspec.Struct, array_like=True):
    """The snapshot: each record in its table's encoding."""

    epoch: int
    users: list[msgspec.Raw]
    groups: list[msgspec.Raw]
    roles: list[msgspec.Raw]
    bans: list[msgspec.Raw]
    revoked: list[msgspec.Raw]
    orders: dict[str, PolicyOrderOutcome]
    tokens: list[msgspec.Raw] = []  # older snapshots have none
    digest: Digest = b""


_decoder = msgspec.msgpack.Decoder(_State)


def _read(data: Payload) -> tuple[int, bytes, Tables, dict[str, PolicyOrderOutcome]]:
    state = _decoder.decode(data)
    tables = Tables()
    tables.users.load(state.users)
    tables.groups.load(state.groups)
    tables.roles.load(state.roles)
    tables.bans.load(state.bans)
    tables.revoked.load(state.revoked)
    tables.tokens.load(state.tokens)
    tables.count_uses()
    newest = max((user.version for user in tables.users.records()), default=0)
    if not newest <= state.epoch < bounds.NUMBER_MAX or len(state.orders) > ORDERS_MAX:
        raise ValueError(f"{len(state.orders)} orders, a user of epoch {newest}, at epoch {state.epoch}")
    refusals = (out_of_range(command) for command in tables.view_commands())
    refusal = tables.too_large() or next(filter(None, refusals), "")
    if refusal:
        raise ValueError(refusal)
    return state.epoch, state.digest, tables, state.orders


_strictly_read = strictly(_read, "snapshot of the policy")


class PolicyMachine:
    """The policy and its transitions.

    Attributes:
        epoch: Raised by one with each step.
        digest: Hash over all steps so far.
    """

    def __init__(self) -> None:
        self.epoch, self.digest = 0, b""
        self._tables = Tables()
        self._orders: dict[str, PolicyOrderOutcome] = {}  # oldest first

    @property
    def tables(self) -> Tables:
        """The records, read-only."""
        return self._tables

    def user(self, name: str) -> User | None:
        """Return a user, None if there is none, as of ``epoch``."""
        return self._tables.users.get(name)

    def snapshot(self) -> bytes:
        """Return the whole state."""
        tables = self._tables
        state = _State(
            self.epoch,
            tables.users.raw(),
            tables.groups.raw(),
            tables.roles.raw(),
            tables.bans.raw(),
            tables.revoked.raw(),
            self._orders,
            tables.tokens.raw(),
            self.digest,
        )
        return msgspec.msgpack.encode(state)

    @property
    def is_new(self) -> bool:
        """Whether no command has had an effect."""
        return not self.epoch and not self._orders

    def capture(self) -> list[bytes | list[bytes]]:
        """Return the parts of ``snapshot``, to be joined elsewhere; the lists hold encoded records.

        Only references are copied, so the machine can continue.
        """
        tables = self._tables
        parts: list[bytes | list[bytes]] = [ARRAY_OF_9, msgspec.msgpack.encode(self.epoch)]
        for table in (tables.users, tables.groups, tables.roles, tables.bans, tables.revoked):
            encoded = table.encoded()
            parts += [_array_of(len(encoded)), encoded]
        parts.append(msgspec.msgpack.encode(self._orders))
        tokens = tables.tokens.encoded()
        return [*parts, _array_of(len(tokens)), tokens, msgspec.msgpack.encode(self.digest)]

    def restore(self, data: Payload) -> None:
        """Replace the whole state.

        Raises:
            Unreadable: Commands cannot have produced this snapshot; nothing changed.
        """
        self.epoch, self.digest, self._tables, self._orders = _strictly_read(data)

    def clear(self) -> None:
        """Reset to empty: the log's snapshot has no policy."""
        self.epoch, self.digest, self._tables, self._orders = 0, b"", Tables(), {}

    def apply(self, command: PolicyCommand) -> PolicyOutcome:
        """Apply one committed command; an invalid one is refused and changes nothing.

        Never raises: every router would meet a committed command again at each start.
        """
        if not isinstance(command, PolicyOrder):
            return self._carry_out(command)
        known = self._known(command)
        if known is not None:
            return known
        outcome = self._carry_out(command.command)
        first = PolicyOrderOutcome(outcome.refusal, self.epoch)
        self._orders[command.identifier] = first
        while len(self._orders) > ORDERS_MAX:
            del self._orders[next(iter(self._orders))]
        return msgspec.structs.replace(outcome, order=first)

    def suppose(self, command: PolicyCommand) -> PolicyOutcome:
        """Return the outcome that a command would have now, without applying it; never raises."""
        if not isinstance(command, PolicyOrder):
            return self._judged(command)[0]
        return self._known(command) or self._judged(command.command)[0]

    def _known(self, command: PolicyOrder) -> PolicyOutcome | None:
        """Return the outcome of a repeated order, or the refusal of an invalid one."""
        first = self._orders.get(command.identifier)
        if first is not None:
            return PolicyOutcome(refusal=first.refusal, order=first)
        refusal = self._refused(command)
        return PolicyOutcome(refusal=refusal) if refusal else None

    def _refused(self, command: PolicyCommand) -> str:
        try:
            return out_of_range(command)
        except MemoryError:
            raise
        except Exception as error:
            return _cannot(command, error)

    def _carry_out(self, command: SimpleCommand) -> PolicyOutcome:
        outcome, changes = self._judged(command)
        if outcome.step is not None and changes is not None:
            self._tables.put(changes)
            self.epoch, self.digest = changes.epoch, digest_behind(outcome.step)
        return outcome

    def _judged(self, command: SimpleCommand) -> tuple[PolicyOutcome, PolicyChanges | None]:
        """Return a command's outcome and its changes, without applying them."""
        try:
            return self._judge(command)
        except MemoryError:
            raise  # of this router only: the others applied the command
        except Exception as error:  # the same at every router, because command and policy determine it
            say(logger, "policy.command_failed", command=type(command).__name__, exc_info=True)
            return PolicyOutcome(refusal=_cannot(command, error)), None

    def _judge(self, command: SimpleCommand) -> tuple[PolicyOutcome, PolicyChanges | None]:
        refusal = out_of_range(command)
        if refusal:
            return PolicyOutcome(refusal=refusal), None
        changes = PolicyChanges(self.epoch + 1, self._tables)
        refusal = RULES[type(command)](changes, command) or self._tables.too_large(changes)
        if refusal or not changes.changed:
            return PolicyOutcome(refusal=refusal), None
        return PolicyOutcome(_step(changes, self.digest)), changes


def _array_of(length: int) -> bytes:
    """Return the head of a msgpack array."""
    if length < 16:
        return bytes([0x90 | length])
    return b"\xdc" + length.to_bytes(2, "big") if length < 1 << 16 else b"\xdd" + length.to_bytes(4, "big")


ARRAY_OF_9 = _array_of(9)  # the fields of _State


def _cannot(command: PolicyCommand, error: Exception) -> str:
    return f"{type(command).__struct_config__.tag} cannot be carried out: {type(error).__name__}"


def _step(changes: PolicyChanges, before: bytes) -> PolicyStep:
    takes = StepOutcome(
        tuple(changes.takes_users),
        tuple(changes.takes_groups),
        tuple(changes.takes_roles),
        tuple(changes.takes_bans),
        tuple(changes.takes_revoked),
        changes.changed_users,
    )
    users = tuple(changes.users)
    return PolicyStep(changes.epoch, users, changes.groups, changes.roles, changes.bans, changes.revoked, takes, before)
