"""Compiled rules in tiers, and their decisions.

A deny wins within a tier, the first matching tier decides, and no match is a deny. A tier's rules share one trie in
which each placeholder is a ``+``; after a match the level is compared with the client's name. So all clients with the
same rules share one compiled form, and no name can widen a rule. Only rules that begin with $ match topics that begin
with $.
"""

import enum
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from access.rules.filters import LEVELS_MAX, FilterTree, covers, overlaps
from access.rules.subject import Placeholder, Subject, parse_levels
from mqtt.errors import MqttError
from mqtt.topic_trie import TopicTrie
from mqtt.topics import parse_shared, validate_topic_filter

__all__ = [
    "ALL_ACTIONS",
    "PUBLISHING",
    "SUBSCRIBING",
    "AccessRule",
    "Action",
    "CompiledRules",
    "Grant",
    "Placeholder",
    "Subject",
    "Tier",
    "check_cost",
    "make_rule",
]

VISITS_MAX = 1_000  # nodes that one decision may visit in a tier: tens of microseconds
GRANTS_KEPT = 1_024  # of one policy, by filter; oldest evicted first
GRANT_CHARACTERS_MAX = 256  # of a filter whose grant is cached
ADDRESSES_KEPT = 4_096  # addresses whose parsed form is cached
V4_MAPPED_BITS = 96  # prefix of an IPv4 address in IPv6 notation


class Action(enum.IntFlag):
    """Uses of a topic, or of a subscriber group's name, by a client."""

    PUBLISH = 1
    SUBSCRIBE = 2
    RECEIVE = 4
    RETAIN = 8
    WILL = 16
    SHARE = 32  # the rule's filter is the group's name


PUBLISHING = Action.PUBLISH | Action.RETAIN | Action.WILL
SUBSCRIBING = Action.SUBSCRIBE | Action.RECEIVE
ALL_ACTIONS = PUBLISHING | SUBSCRIBING  # on topics


class Grant(enum.Enum):
    """How much of a filter a client may receive."""

    GRANTED = "granted"  # all of its topics: deliveries need no check
    PARTIAL = "partial"  # possibly some of its topics: each delivery is checked
    REFUSED = "refused"  # none of its topics


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One allow or deny.

    Attributes:
        allow: False for a deny.
        actions: Any of them.
        levels: Of a valid filter; of the name of a group if the action is SHARE.
        qos_max: Applies up to this QoS.
        listener: Applies to clients of this listener only; empty for all.
        network: Applies to addresses in this network only; empty for all.
        qos_min: Applies from this QoS.
    """

    allow: bool
    actions: Action
    levels: tuple[str | Placeholder, ...]
    qos_max: int = 2
    listener: str = ""
    network: str = ""
    qos_min: int = 0

    @property
    def asks_connection(self) -> bool:
        """Whether the rule depends on the connection (address, certificate, credentials), not only on names of the
        session.
        """
        names = (level.name for level in self.levels if isinstance(level, Placeholder))
        return bool(self.network) or any(name in ("common_name", "attribute") for name in names)


Tier: TypeAlias = tuple[AccessRule, ...]


def make_rule(
    allow: bool,
    actions: Action,
    text: str,
    qos_max: int = 2,
    listener: str = "",
    network: str = "",
    qos_min: int = 0,
    placeholders: bool = True,
) -> AccessRule:
    """Return a rule with validated filter and network.

    Args:
        text: A topic filter, with placeholders as whole levels.
        placeholders: False treats ``%c`` and others as literal text.

    Raises:
        ValueError: The filter or the network is invalid; the text does not quote them.
    """
    try:
        validate_topic_filter(text, levels_max=LEVELS_MAX)
    except MqttError as error:
        raise ValueError(f"no topic filter: {error}") from None
    if text.startswith("$share/"):
        raise ValueError("a rule names topics, without $share and the group")
    if network:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise ValueError("no network; write an address and its bits, such as 10.1.0.0/16") from None
    levels: tuple[str | Placeholder, ...] = parse_levels(text) if placeholders else tuple(text.split("/"))
    return AccessRule(allow, actions, levels, qos_max, listener, network, qos_min)


def check_cost(tier: Tier) -> None:
    """Check the cost of a decision by a tier.

    Raises:
        ValueError: Its wildcards make one decision visit too many nodes.
    """
    visits = _CompiledTier(tier).visits
    if visits > VISITS_MAX:
        raise ValueError(f"one decision by these rules may touch {visits} nodes, more than {VISITS_MAX}; use fewer +")


class CompiledRules:
    """Compiled tiers of rules: decisions for all clients that have them."""

    __slots__ = ("_asked", "_cacheable", "_grants", "_groups_named", "_names", "_tiers", "asks_connection", "by_qos")

    def __init__(self, tiers: Sequence[Tier], groups_named: bool = False) -> None:
        """Compile.

        Args:
            tiers: In the order of decision.
            groups_named: Some rule names groups, so joining one needs SHARE; also set if a rule of ``tiers`` does.
        """
        self._tiers = tuple(_CompiledTier(tier) for tier in tiers if tier)
        entries = [entry for tier in self._tiers for entry in tier.entries]
        share, publishing, subscribing = int(Action.SHARE), int(PUBLISHING), int(SUBSCRIBING)
        self._groups_named = groups_named or any(entry.actions & share for entry in entries)
        # Whether publishing decisions depend on the QoS.
        self.by_qos = any(entry.actions & publishing and (entry.qos_min, entry.qos_max) != (0, 2) for entry in entries)
        # Rules that name both actions give equal decisions for both.
        alike = all(entry.actions & subscribing in (0, subscribing) for entry in entries)
        self._asked = (Action.SUBSCRIBE,) if alike else (Action.SUBSCRIBE, Action.RECEIVE)
        self._names = {
            (placeholder, at == 0) for entry in entries for at, placeholder in entry.levels if at == entry.without
        }
        self._cacheable = all(tier.common for tier in self._tiers)
        # A rule depends on more than names, so decisions about disconnected clients are not cached.
        self.asks_connection = any(rule.asks_connection for tier in tiers for rule in tier)
        self._grants: dict[tuple[str, int], Grant] = {}

    def decide(self, action: Action, topic: str, who: Subject, qos: int = 0) -> bool:
        """Return whether a client may do an action on a topic name or, for SHARE, on a group's name."""
        return self.decided(action, topic, who, qos) is True

    def decided(self, action: Action, topic: str, who: Subject, qos: int = 0) -> bool | None:
        """Return the decision of the first tier that decides, None if none does."""
        if "+" in topic or "#" in topic or not topic:
            return False
        wanted = int(action)
        for tier in self._tiers:
            verdict = tier.decide(wanted, topic, who, qos)
            if verdict is not None:
                return verdict
        return None

    def decide_for_all(self, action: Action, topic: str, qos: int = 0) -> bool | None:
        """Return the decision for every client with these rules, None if it depends on the client.

        It does not apply to a client for which ``has_levels`` is False.
        """
        if "+" in topic or "#" in topic or not topic:
            return False
        wanted = int(action)
        for tier in self._tiers:
            verdict, personal = tier.decide_for_all(wanted, topic, qos)
            if personal:
                return None
            if verdict is not None:
                return verdict
        return False

    def has_levels(self, who: Subject) -> bool:
        """Return whether each name of a client that a deny uses as a placeholder is a literal level."""
        return not self._names or all(placeholder.value(who, first) is not None for placeholder, first in self._names)

    def grant(self, topic_filter: str, who: Subject, qos: int = 0) -> Grant:
        """Return how much of a filter, with or without ``$share``, a client may subscribe to and receive.

        GRANTED includes no topic that ``decide`` refuses; PARTIAL may turn out to be none.
        """
        group = ""
        try:
            if shared := parse_shared(topic_filter):
                group, topic_filter = shared
            validate_topic_filter(topic_filter)
        except MqttError:
            return Grant.REFUSED
        if group and self._groups_named and not self.decide(Action.SHARE, group, who):
            return Grant.REFUSED
        key = (topic_filter, qos)
        known = self._grants.get(key)
        if known is not None:
            return known
        grants = {self._grant(action, topic_filter, who, qos) for action in self._asked}
        if Grant.REFUSED in grants:
            grant = Grant.REFUSED
        else:
            grant = Grant.PARTIAL if Grant.PARTIAL in grants else Grant.GRANTED
        if self._cacheable and len(topic_filter) <= GRANT_CHARACTERS_MAX:
            while len(self._grants) >= GRANTS_KEPT:
                del self._grants[next(iter(self._grants))]
            self._grants[key] = grant
        return grant

    def _grant(self, action: Action, topic_filter: str, who: Subject, qos: int) -> Grant:
        levels = topic_filter.split("/")
        wanted = int(action)
        denied = possible = False
        for tier in self._tiers:
            covered = tier.covering(wanted, topic_filter, levels, who, qos)
            if covered is False:
                break
            denied = denied or tier.reaches(tier.denies, wanted, levels, who, qos)
            if covered:
                return Grant.PARTIAL if denied else Grant.GRANTED
            possible = possible or tier.reaches(tier.allows, wanted, levels, who, qos)
        return Grant.PARTIAL if possible else Grant.REFUSED


class _Entry:
    """One rule in the form of the trie.

    A deny with placeholders has an additional entry for each of them, with ``+/#`` in its place: it applies if that
    placeholder has no value.
    """

    __slots__ = ("actions", "allow", "common", "everywhere", "form", "levels", "qos_max", "qos_min", "rule", "without")

    def __init__(self, rule: AccessRule, without: int | None = None) -> None:
        self.allow = rule.allow
        self.actions = int(rule.actions)
        self.qos_min, self.qos_max = rule.qos_min, rule.qos_max
        self.rule = rule
        self.without = without  # position of the placeholder that must have no value
        kept = rule.levels if without is None else (*rule.levels[:without], "+", "#")
        self.levels = [(at, level) for at, level in enumerate(kept) if isinstance(level, Placeholder)]
        if without is not None:
            level = rule.levels[without]
            assert isinstance(level, Placeholder)
            self.levels.append((without, level))
        self.form = tuple("+" if isinstance(level, Placeholder) else level for level in kept)
        self.everywhere = not (rule.listener or rule.network)
        self.common = self.everywhere and not self.levels

    def resolved(self, who: Subject) -> tuple[str, ...] | None:
        """Return the levels of the filter for a client, None if the rule does not apply to it."""
        if not self._is_for(who):
            return None
        form = list(self.form)
        for at, placeholder in self.levels:
            value = placeholder.value(who, at == 0)
            if at == self.without:
                if value is not None:
                    return None
            elif value is None:
                return None
            else:
                form[at] = value
        return tuple(form)

    def applies(self, levels: list[str], who: Subject) -> bool:
        """Return whether the rule applies to a topic that its form matches."""
        for at, placeholder in self.levels:
            if at == self.without:
                if placeholder.value(who, at == 0) is not None:
                    return False
            elif not placeholder.is_level(levels[at], who):  # a first level with $ does not match the form
                return False
        return self.everywhere or self._is_for(who)

    def _is_for(self, who: Subject) -> bool:
        """Return whether the other conditions hold; for an unknown client, those of denies do."""
        listener, network = self.rule.listener, self.rule.network
        if listener and listener != who.listener and (self.allow or who.listener):
            return False
        return not network or _is_in_network(who.address, network, not self.allow)


class _CompiledTier:
    """The entries of one tier: in a trie for topics, and in two trees for filters, created on first use."""

    __slots__ = ("_leading", "_trees", "_trie", "common", "entries")

    def __init__(self, tier: Tier) -> None:
        self.entries = [entry for rule in tier for entry in _entries(rule)]
        self._trie = TopicTrie()
        for number, entry in enumerate(self.entries):
            self._trie.add("/".join(entry.form), number, entry)
        self.common = all(entry.common for entry in self.entries)
        # Denies that begin with a placeholder: without a value they also match topics that begin with $.
        self._leading = [entry for entry in self.entries if entry.without == 0]
        self._trees: tuple[FilterTree[_Entry], FilterTree[_Entry]] | None = None

    @property
    def visits(self) -> int:
        """Maximum number of nodes that one decision visits."""
        return self._trie.visits()

    @property
    def allows(self) -> FilterTree[_Entry]:
        """Allows of subscriptions and deliveries."""
        return self._both()[1]

    @property
    def denies(self) -> FilterTree[_Entry]:
        """Denies of subscriptions and deliveries."""
        return self._both()[0]

    def decide(self, wanted: int, topic: str, who: Subject, qos: int) -> bool | None:
        """Return the decision, None if no rule of this tier matches."""
        allowed = None
        levels: list[str] | None = None
        for entry in self._trie.match(topic):
            if entry.actions & wanted and entry.qos_min <= qos <= entry.qos_max:
                if not entry.common:
                    if levels is None:
                        levels = topic.split("/")
                    if not entry.applies(levels, who):
                        continue
                if not entry.allow:
                    return False
                allowed = True
        if self._leading and topic[:1] == "$" and self._denied_by_name(wanted, who, qos):
            return False
        return allowed

    def decide_for_all(self, wanted: int, topic: str, qos: int) -> tuple[bool | None, bool]:
        """Return the decision that is independent of names, and whether it may depend on the client."""
        allowed = None
        personal = False
        for entry in self._trie.match(topic):
            if entry.actions & wanted and entry.qos_min <= qos <= entry.qos_max:
                if not entry.common:
                    personal = personal or entry.without is None
                elif not entry.allow:
                    return False, False  # within its tier a deny is final
                else:
                    allowed = True
        return allowed, personal

    def covering(self, wanted: int, topic_filter: str, levels: list[str], who: Subject, qos: int) -> bool | None:
        """Return False if a deny covers a filter, else True if an allow does, else None."""
        found = None
        # The match treats wildcards of the filter as plain levels, so it finds all covering rules and some more.
        for entry in self._trie.match(topic_filter):
            form = _form(entry, wanted, who, qos)
            if form is not None and covers(form, levels):
                if not entry.allow:
                    return False
                found = True
        if self._leading and topic_filter[:1] == "$" and self._denied_by_name(wanted, who, qos):
            return False
        return found

    def reaches(self, tree: FilterTree[_Entry], wanted: int, levels: list[str], who: Subject, qos: int) -> bool:
        """Return whether a rule of a tree overlaps a filter."""
        for entry in tree.overlapping(levels):
            form = _form(entry, wanted, who, qos)
            if form is not None and (form is entry.form or overlaps(form, levels)):
                return True
        return False

    def _denied_by_name(self, wanted: int, who: Subject, qos: int) -> bool:
        return any(_form(entry, wanted, who, qos) is not None for entry in self._leading)

    def _both(self) -> tuple[FilterTree[_Entry], FilterTree[_Entry]]:
        if self._trees is None:
            self._trees = (FilterTree(), FilterTree())
            subscribing = int(SUBSCRIBING)
            for entry in self.entries:
                if entry.actions & subscribing:
                    self._trees[entry.allow].add(entry.form, entry)
        return self._trees


def _entries(rule: AccessRule) -> Iterable[_Entry]:
    yield _Entry(rule)
    if not rule.allow:
        for at, level in enumerate(rule.levels):
            if isinstance(level, Placeholder):
                yield _Entry(rule, at)


def _form(entry: _Entry, wanted: int, who: Subject, qos: int) -> tuple[str, ...] | None:
    """Return the levels of an entry's filter for a client and an action, None if the rule does not apply."""
    if not entry.actions & wanted or not entry.qos_min <= qos <= entry.qos_max:
        return None
    return entry.form if entry.common else entry.resolved(who)


@lru_cache(maxsize=ADDRESSES_KEPT)
def _is_in_network(address: str, network: str, unknown: bool) -> bool:
    """Return whether an address is in a network, ``unknown`` if either cannot be parsed."""
    try:
        given, around = ipaddress.ip_address(address), ipaddress.ip_network(network)
        if isinstance(given, ipaddress.IPv6Address) and given.ipv4_mapped is not None:
            given = given.ipv4_mapped
        mapped = around.network_address.ipv4_mapped if isinstance(around, ipaddress.IPv6Network) else None
        # IPv6 notation: otherwise no IPv4 client is in it
        if mapped is not None and around.prefixlen >= V4_MAPPED_BITS:
            around = ipaddress.IPv4Network((mapped, around.prefixlen - V4_MAPPED_BITS))
        return given in around
    except ValueError:
        return unknown
