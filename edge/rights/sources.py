"""Sources of rules: the tiers of a client from roles, from Mosquitto's acl_file, and from its own credentials.

The order is that of trust: the cluster's roles, those of a file, then the acl_file, all written by the operator; then
the rules in a token or an HTTP response. So no credential overrides a deny of the operator. ``RightsKey`` has the names
of a client's rules, and clients with equal names share one compiled form. An unknown name gives no rule. Before all of
them, topics under $gateway/ are reserved for gateways.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from access.identity.principal import GATEWAY_USER, Principal
from access.policy.view import PolicyView
from access.rules.acl_file import AclFile
from access.rules.rights import RightsKey
from access.rules.role_table import RoleTable
from access.rules.rules import ALL_ACTIONS, Action, Tier, make_rule

__all__ = ["RuleBook", "Sources"]

ROLE, SECTION, LISTENER = "role ", "section ", "listener "  # prefixes of names
CLUSTER_ROLE = "role of the cluster "
ANONYMOUS_SECTION, PATTERNS = "anonymous", "patterns"
GATEWAY = "gateway"  # a name of the rules of every gateway
OF_GATEWAYS = "$gateway/#"
GATEWAYS_ALLOWED: Tier = (make_rule(True, ALL_ACTIONS, OF_GATEWAYS),)
GATEWAYS_DENIED: Tier = (make_rule(False, ALL_ACTIONS, OF_GATEWAYS),)


@dataclass(frozen=True, slots=True)
class Sources:
    """The rules of one listener.

    Attributes:
        roles: Of its file of roles.
        acl: Its acl_file.
        authenticated: Roles of each authenticated client.
        anonymous: Roles of each anonymous client.
        of_cluster: The cluster's roles apply: those of its users, and those of the two settings before.
        overlap: A partly allowed filter is granted, and each delivery by it is authorized; always with an acl_file, as
            in Mosquitto.
    """

    roles: RoleTable | None = None
    acl: AclFile | None = None
    authenticated: tuple[str, ...] = ()
    anonymous: tuple[str, ...] = ()
    overlap: bool = False
    of_cluster: bool = False
    of_credentials: bool = False  # tokens, or HTTP responses, may contain rules

    @property
    def filters(self) -> bool:
        """Whether filters may be partly granted."""
        return self.overlap or self.acl is not None

    @property
    def groups_named(self) -> bool:
        """Whether any rule has SHARE: then a client needs the permission to join a shared subscription."""
        acl = self.acl
        tiers = () if acl is None else (acl.anonymous, acl.patterns, *acl.users.values())
        in_file = any(rule.actions & Action.SHARE for tier in tiers for rule in tier)
        return in_file or (self.roles is not None and self.roles.groups_named)

    def key(self, principal: Principal | None, client_id: str) -> RightsKey:
        """Return the names of a client's rules; without a principal it is anonymous, even with a user name."""
        user = principal.user if principal is not None else ""
        names: list[str] = []
        given = (*(self.authenticated if user else self.anonymous), *(principal.roles if principal is not None else ()))
        if self.of_cluster:
            names += [CLUSTER_ROLE + name for name in dict.fromkeys(given)]
        if self.roles is not None:
            names += [ROLE + name for name in self.roles.roles(user, given)]
        if self.acl is not None:
            if not user:
                names.append(ANONYMOUS_SECTION)
            elif user in self.acl.users:
                names.append(SECTION + user)
            if self.acl.has_patterns_for(user, client_id):
                names.append(PATTERNS)
        return RightsKey(tuple(names), principal.tiers if principal is not None else ())

    def limits(self, key: RightsKey, policy: PolicyView) -> list[Mapping[str, int]]:
        """Return the limits of the roles of a key."""
        limits: list[Mapping[str, int]] = []
        of_table = self.roles.limits if self.roles is not None else {}
        for name in key.names:
            if name.startswith(CLUSTER_ROLE):
                limits.append(policy.role_limits.get(name.removeprefix(CLUSTER_ROLE), {}))
            elif name.startswith(ROLE):
                limits.append(of_table.get(name.removeprefix(ROLE), {}))
        return limits

    def tiers(self, key: RightsKey, policy: PolicyView) -> Sequence[Tier]:
        """Return the tiers of a key in the order of evaluation."""
        tiers: list[Tier] = []
        if self.of_cluster:
            names = (name.removeprefix(CLUSTER_ROLE) for name in key.names if name.startswith(CLUSTER_ROLE))
            tiers += policy.tiers(names)
        if self.roles is not None:
            tiers += self.roles.tiers(name.removeprefix(ROLE) for name in key.names if name.startswith(ROLE))
        if self.acl is not None:
            for name in key.names:
                if name == ANONYMOUS_SECTION:
                    tiers.append(self.acl.anonymous)
                elif name.startswith(SECTION):
                    tiers.append(self.acl.users.get(name.removeprefix(SECTION), ()))
                elif name == PATTERNS:
                    tiers.append(self.acl.patterns)
        return (*tiers, *key.tiers)


NO_RULES = Sources()


@dataclass(frozen=True)
class RuleBook:
    """The rules of all listeners of an edge.

    The listener is the first name of a key, so clients of two listeners share no decision.
    """

    by_listener: Mapping[str, Sources]
    policy: PolicyView = field(default_factory=PolicyView)  # of the cluster
    # By listener, if all its anonymous clients have equal rules.
    _anonymous: dict[str, RightsKey] = field(default_factory=dict, compare=False)

    @property
    def of_cluster(self) -> bool:
        """Whether the cluster's roles apply at any listener."""
        return any(sources.of_cluster for sources in self.by_listener.values())

    @cached_property
    def filters(self) -> bool:
        """Whether filters may be partly granted at any listener; read for each new Route."""
        return any(sources.filters for sources in self.by_listener.values())

    @property
    def groups_named(self) -> bool:
        """Whether any rule of the edge has SHARE."""
        named = any(sources.groups_named for sources in self.by_listener.values())
        return named or (self.of_cluster and self.policy.groups_named)

    def of(self, listener: str) -> Sources:
        """Return the rules of a listener; an unknown one has none, and its clients may do nothing."""
        return self.by_listener.get(listener, NO_RULES)

    def key(self, listener: str, principal: Principal | None, client_id: str) -> RightsKey:
        """Return the names of a client's rules."""
        sources = self.of(listener)
        is_alike = sources.acl is None and (principal is None or not (principal.user or principal.roles))
        known = self._anonymous.get(listener) if is_alike else None
        if known is not None and (principal is None or not principal.tiers):
            return known
        own = sources.key(principal, client_id)
        is_gateway = principal is not None and principal.user.startswith(GATEWAY_USER)  # by its certificate: chain.py
        names = (LISTENER + listener, GATEWAY) if is_gateway else (LISTENER + listener,)
        key = RightsKey((*names, *own.names), own.tiers)
        if is_alike and not own.tiers:
            self._anonymous[listener] = key
        return key

    def role_limits(self, listener: str, principal: Principal | None, client_id: str) -> list[Mapping[str, int]]:
        """Return the limits of a client's roles, empty if no role has any."""
        sources = self.of(listener)
        if not (self.policy.role_limits if sources.of_cluster else ()) and not (sources.roles and sources.roles.limits):
            return []
        return sources.limits(self.key(listener, principal, client_id), self.policy)

    def tiers(self, key: RightsKey) -> Sequence[Tier]:
        """Return the tiers of a key; empty for a removed listener."""
        sources = self.by_listener.get(key.names[0].removeprefix(LISTENER))
        if sources is None:
            return ()
        reserved = GATEWAYS_ALLOWED if GATEWAY in key.names else GATEWAYS_DENIED
        return (reserved, *sources.tiers(RightsKey(key.names[1:], key.tiers), self.policy))
