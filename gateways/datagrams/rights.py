"""The rules of devices: the roles of a file, as of a listener, asked by the name of a device's key."""

from pathlib import Path

from access.rules.role_table import RoleTable, read_role_table
from access.rules.rules import Action, CompiledRules, Grant
from access.rules.subject import Subject

__all__ = ["RoleRights"]

KEPT_MAX = 10_000  # names whose rules stand ready


class RoleRights:
    """Rights by roles."""

    def __init__(self, path: Path, roles: tuple[str, ...]) -> None:
        """Read the roles.

        Args:
            path: File of roles.
            roles: What each device has beside what the file gives its name.
        Raises:
            AccessFileError: The file is unusable.
            ValueError: A role is not in it.
        """
        self._path, self._roles = path, roles
        self._table = self.read()
        self._policies: dict[str, tuple[CompiledRules, Subject]] = {}

    def read(self) -> RoleTable:
        """Return the roles of the file as they stand there now.

        Raises:
            AccessFileError: The file is unusable.
            ValueError: A role is not in it.
        """
        table = read_role_table(self._path)
        unknown = [role for role in self._roles if role not in table.roles("", self._roles)]
        if unknown:
            raise ValueError(f"{self._path}: device_roles names {unknown[0]!r}, which is no role of this file")
        return table

    def take(self, table: RoleTable) -> None:
        """Judge by these roles from now on."""
        self._table = table
        self._policies.clear()

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        """Return whether a device may publish to a topic."""
        policy, who = self._policies.get(name) or self._policy(name)
        return policy.decide(Action.PUBLISH, topic, who, qos)

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        """Return whether a device may have all that a filter matches."""
        policy, who = self._policies.get(name) or self._policy(name)
        return policy.grant(topic_filter, who, qos) is Grant.GRANTED

    def _policy(self, name: str) -> tuple[CompiledRules, Subject]:
        while len(self._policies) >= KEPT_MAX:
            del self._policies[next(iter(self._policies))]
        tiers = self._table.tiers(self._table.roles(name, self._roles))
        kept = self._policies[name] = (CompiledRules(tiers, self._table.groups_named), Subject(name, name))
        return kept
