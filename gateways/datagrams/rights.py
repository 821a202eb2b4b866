"""Authorization of devices: the roles of a file, as for a listener, by the name of a device's key."""

from pathlib import Path

from access.rules.role_table import RoleTable, read_role_table
from access.rules.rules import Action, CompiledRules, Grant
from access.rules.subject import Subject

__all__ = ["RoleRights"]

COMPILED_MAX = 10_000  # names with compiled rules


class RoleRights:
    """Rights by roles."""

    def __init__(self, path: Path, roles: tuple[str, ...]) -> None:
        """Read the roles.

        Args:
          path: File of roles.
          roles: Roles of each device in addition to those of the file.

        Raises:
          AccessFileError: The file is unusable.
          ValueError: A role is not in it.
        """
        self._path, self._roles = path, roles
        self._table = self.read()
        self._policies: dict[str, tuple[CompiledRules, Subject]] = {}

    def read(self) -> RoleTable:
        """Return the current roles of the file.

        Raises:
          AccessFileError: The file is unusable.
          ValueError: A role is not in it.
        """
        table = read_role_table(self._path)
        unknown = [role for role in self._roles if role not in table.roles("", self._roles)]
        if unknown:
            raise ValueError(f"{self._path}: device_roles names {unknown[0]!r}, which is not a role of this file")
        return table

    def take(self, table: RoleTable) -> None:
        """Use these roles from now on."""
        self._table = table
        self._policies.clear()

    def may_publish(self, name: str, topic: str, qos: int) -> bool:
        """Return whether a device may publish to a topic."""
        policy, subject = self._policies.get(name) or self._policy(name)
        return policy.decide(Action.PUBLISH, topic, subject, qos)

    def may_subscribe(self, name: str, topic_filter: str, qos: int) -> bool:
        """Return whether a device may receive all messages that a filter matches."""
        policy, subject = self._policies.get(name) or self._policy(name)
        return policy.grant(topic_filter, subject, qos) is Grant.GRANTED

    def _policy(self, name: str) -> tuple[CompiledRules, Subject]:
        while len(self._policies) >= COMPILED_MAX:
            del self._policies[next(iter(self._policies))]
        tiers = self._table.tiers(self._table.roles(name, self._roles))
        compiled = self._policies[name] = (CompiledRules(tiers, self._table.groups_named), Subject(name, name))
        return compiled
