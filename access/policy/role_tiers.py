"""Compiles the rules of the cluster's roles.

The policy stores a rule as it was given; ``access.rules`` compiles it. ``role_fault`` ensures that every role a command
can create can be compiled.
"""

from collections.abc import Iterable, Sequence

from access.policy.records import RoleRecord, RuleRecord
from access.rules import rules
from access.rules.rules import Action, Tier

__all__ = ["role_fault", "tiers_of"]

SHARE = int(Action.SHARE)


def tiers_of(roles: Iterable[RoleRecord]) -> tuple[Tier, ...]:
    """Return the combined tiers of roles, highest priority first; roles of equal priority share a tier.

    Raises:
        ValueError: A rule is invalid; the policy never holds one.
    """
    by_priority: dict[int, list[rules.AccessRule]] = {}
    for role in roles:
        by_priority.setdefault(role.priority, []).extend(map(_compiled, role.rules))
    return tuple(tuple(by_priority[priority]) for priority in sorted(by_priority, reverse=True))


def role_fault(given: Sequence[RuleRecord]) -> str:
    """Return why the rules of a role cannot be compiled, "" if they can; the text quotes none of them."""
    for number, rule in enumerate(given):
        try:
            _compiled(rule)
        except ValueError as error:
            return f"rule {number} cannot be kept: {error}"
    try:
        rules.check_cost(tuple(map(_compiled, given)))
    except ValueError as error:
        return str(error)
    return ""


def _compiled(rule: RuleRecord) -> rules.AccessRule:
    if rule.actions & SHARE and (rule.actions != SHARE or "/" in rule.filter or "#" in rule.filter):
        raise ValueError("a rule about groups names one group, or + for every group, and nothing else")
    return rules.make_rule(rule.allow, Action(rule.actions), rule.filter, rule.qos_max, rule.listener, rule.network)
