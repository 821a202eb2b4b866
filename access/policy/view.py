"""A node's view of the policy: roles, groups, bans and revocations, and the epoch of the next step.

Users are not part of it: a node requests one by name from a router, and accepts an answer only if its epoch is not
below the view's (docs/adr/0034). A whole view in pages does not list changes, so the node re-authorizes all clients.
"""

from collections.abc import Iterable, Mapping

import msgspec

from access.limits.bans import Ban, BanTable, normal_value
from access.limits.strictest import strictest
from access.policy.changes import Tables
from access.policy.records import Limits, Revoked, RoleRecord, User, UserEntitlements, UserGroup, ban_key, revoked_key
from access.policy.role_tiers import tiers_of
from access.policy.step import PolicyStep, digest_behind
from access.policy.tables import Table, bans_table, groups_table, revoked_table, roles_table
from access.rules.rules import Action, Tier
from wire.decoding import Payload, Unreadable, plain_text, strictly
from wire.messages.ranges import Digest

__all__ = ["PolicyView", "ViewReading", "encode_view", "limits_of", "roles_of"]

SLICE = 1_500  # records of one iteration: about 2 ms
RULE_COST = 2  # of a rule, in records


class _Encoded(msgspec.Struct, array_like=True):
    epoch: int
    groups: list[msgspec.Raw]
    roles: list[msgspec.Raw]
    bans: list[msgspec.Raw]
    revoked: list[msgspec.Raw]
    digest: Digest = b""


class PolicyView:
    """The part of the policy that every node stores, at one epoch; epoch 0 is an empty policy."""

    def __init__(self) -> None:
        self.epoch, self.digest = 0, b""
        self.bans = BanTable()
        self._groups: Table[UserGroup] = groups_table()
        self._roles: Table[RoleRecord] = roles_table()
        self._revoked: Table[Revoked] = revoked_table()
        self._sharing: set[str] = set()  # roles with rules about groups of subscribers
        self.role_limits: dict[str, Limits] = {}  # of the roles with limits

    def role(self, name: str) -> RoleRecord | None:
        """Return a role, None if there is none: it grants nothing."""
        return self._roles.get(name)

    def tiers(self, roles: Iterable[str]) -> tuple[Tier, ...]:
        """Return the combined rules of roles, highest priority first; a missing role has none."""
        return tiers_of(role for name in roles if (role := self._roles.get(name)) is not None)

    @property
    def groups_named(self) -> bool:
        """Whether any role names groups of subscribers: then joining one needs the right."""
        return bool(self._sharing)

    def group(self, name: str) -> UserGroup | None:
        """Return a group, None if there is none."""
        return self._groups.get(name)

    def is_revoked(self, kind: str, issuer: str, value: str) -> bool:
        """Return whether a certificate or a token is revoked; the log handles expiries of revocations."""
        return revoked_key(kind, issuer, value) in self._revoked

    def apply(self, step: PolicyStep) -> None:
        """Move to the step's epoch.

        Raises:
            ValueError: The step does not follow this epoch or state, or has an invalid ban or role; nothing changed.
        """
        if step.epoch != self.epoch + 1:
            raise ValueError(f"a step to policy epoch {step.epoch} does not follow epoch {self.epoch}")
        if step.before != self.digest:
            raise ValueError(f"a step to policy epoch {step.epoch} is one of another policy")
        for key, ban in step.bans.items():
            kind, _, value = key.partition(" ")
            if normal_value(kind, value) != value or (ban is not None and ban_key(ban.kind, ban.value) != key):
                raise ValueError("a step with a ban that is none")
        for name, role in step.roles.items():
            if role is not None:
                _check(name, role)
        for key, ban in step.bans.items():
            if ban is None:
                kind, _, value = key.partition(" ")
                self.bans.remove(kind, value)
            else:
                self.bans.put(ban)
        for name, group in step.groups.items():
            self._groups.remove(name) if group is None else self._groups.put(group)
        for name, role in step.roles.items():
            self._roles.remove(name) if role is None else self._roles.put(role)
            self._note(name, role)
        for key, revoked in step.revoked.items():
            self._revoked.remove(key) if revoked is None else self._revoked.put(revoked)
        self.epoch, self.digest = step.epoch, digest_behind(step)

    def _note(self, name: str, role: RoleRecord | None) -> None:
        """Update the data that is derived from all roles."""
        self.role_limits.pop(name, None)
        self._sharing.discard(name)
        if role is not None and role.limits:
            self.role_limits[name] = role.limits
        if role is not None and any(rule.actions & Action.SHARE for rule in role.rules):
            self._sharing.add(name)

    def _add(self, kind: str, raw: msgspec.Raw) -> int:
        """Add a record of a snapshot; return its cost in records."""
        match kind:
            case "roles":
                role = self._roles.add(raw)
                _check(role.name, role)
                self._note(role.name, role)
                return 1 + RULE_COST * len(role.rules)
            case "groups":
                self._groups.add(raw)
            case _:
                self._revoked.add(raw)
        return 1


class ViewReading:
    """A whole view that is decoded in slices: its records are too many for one iteration of a node.

    Attributes:
        view: Valid only after ``advance`` has returned True.
    """

    def __init__(self, data: Payload) -> None:
        """Start with an encoded view.

        Raises:
            Unreadable: It is invalid.
        """
        encoded = _decode(data)
        self.view = PolicyView()
        self._epoch, self._digest = encoded.epoch, encoded.digest
        self._bans: Table[Ban] = bans_table()
        self._rest = [(kind, getattr(encoded, kind), 0) for kind in ("revoked", "bans", "roles", "groups")]

    def advance(self, cost_max: int = SLICE) -> bool:
        """Decode a slice; return whether the view is complete.

        Args:
            cost_max: In records, a rule of a role counting RULE_COST; may be exceeded by one role.

        Raises:
            Unreadable: A record is out of its range, or a key repeats.
        """
        while self._rest and cost_max > 0:
            kind, records, at = self._rest.pop()
            while at < len(records) and cost_max > 0:
                cost_max -= self._add(kind, records[at])
                at += 1
            if at < len(records):
                self._rest.append((kind, records, at))
        if not self._rest:
            self.view.epoch, self.view.digest = self._epoch, self._digest
        return not self._rest

    def _add(self, kind: str, raw: msgspec.Raw) -> int:
        try:
            if kind != "bans":
                return self.view._add(kind, raw)
            self.view.bans.put(self._bans.add(raw))
            return 1
        except Exception as error:  # any exception is caused by the record
            raise Unreadable(f"unreadable policy view: {plain_text(str(error) or type(error).__name__)}") from None


def roles_of(user: User | UserEntitlements, view: PolicyView) -> tuple[str, ...]:
    """Return the roles of a user, its own before those of its groups."""
    groups = [group for name in user.groups if (group := view.group(name)) is not None]
    return tuple(dict.fromkeys((*user.roles, *(role for group in groups for role in group.roles))))


def limits_of(user: User | UserEntitlements, view: PolicyView) -> Mapping[str, int]:
    """Return the limits of a user: the strictest of its own and of its groups'."""
    groups = [group for name in user.groups if (group := view.group(name)) is not None]
    return strictest(user.limits, *(group.limits for group in groups)) if groups else user.limits


def _check(name: str, role: RoleRecord) -> None:
    """Refuse a role whose rules cannot be compiled: found at a login, it would stop the node.

    Raises:
        ValueError: The role is invalid.
    """
    if role.name != name:
        raise ValueError("a role under another's name")
    tiers_of((role,))


def encode_view(epoch: int, tables: Tables, digest: bytes) -> bytes:
    """Return the encoded view of a policy at an epoch."""
    encoded = _Encoded(epoch, tables.groups.raw(), tables.roles.raw(), tables.bans.raw(), tables.revoked.raw(), digest)
    return msgspec.msgpack.encode(encoded)


_decode = strictly(msgspec.msgpack.Decoder(_Encoded).decode, "policy view")
