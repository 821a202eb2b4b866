"""Rules in tiers, compiled, and their decisions.

A deny wins within a tier, the first tier that decides decides, and no match is a deny. A tier's rules stand in one trie
where each placeholder is a ``+``; after a match the level is compared with the client's name, so all clients with the
same rules share one compiled form and no name can widen a rule. Topics that begin with $ are reached only by rules that
begin with $.
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

VISITS_MAX = 1_000  # nodes that one decision may touch in a tier: tens of microseconds
GRANTS_KEPT = 1_024  # of one policy, by filter; the oldest goes first
GRANT_CHARACTERS_MAX = 256  # of a filter whose grant is kept
ADDRESSES_KEPT = 4_096  # addresses whose parsed form is kept
V4_MAPPED_BITS = 96  # in front of an IPv4 address that is written as IPv6


class Action(enum.IntFlag):
    """Uses of a topic, or of the name of a group of subscribers, by a client."""

    PUBLISH = 1
    SUBSCRIBE = 2
    RECEIVE = 4
    RETAIN = 8
    WILL = 16
    SHARE = 32  # the rule's filter is the group's name


PUBLISHING = Action.PUBLISH | Action.RETAIN | Action.WILL
SUBSCRIBING = Action.SUBSCRIBE | Action.RECEIVE
ALL_ACTIONS = PUBLISHING | SUBSCRIBING  # with a topic


class Grant(enum.Enum):
    """How much of a filter a client may receive."""

    GRANTED = "granted"  # every topic of it: deliveries need no test
    PARTIAL = "partial"  # perhaps some of it: each delivery must be decided
    REFUSED = "refused"  # nothing


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
        """Whether more decides than names that a session keeps: an address, a certificate, credentials."""
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
    """Return a rule whose filter and network are checked.

    Args:
        text: A topic filter, with placeholders as whole levels.
        placeholders: False reads ``%c`` and the like as they stand.
    Raises:
        ValueError: The filter or the network is not valid; the text quotes nothing of them.
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
    """Check that a decision by a tier stays cheap.

    Raises:
        ValueError: Its wildcards make one decision touch too many nodes.
    """
    visits = _CompiledTier(tier).visits
    if visits > VISITS_MAX:
        raise ValueError(f"one decision by these rules may touch {visits} nodes, more than {VISITS_MAX}; use fewer +")


class CompiledRules:
    """Tiers of rules, compiled: decisions for all clients that have them."""

    __slots__ = ("_asked", "_cacheable", "_grants", "_groups_named", "_names", "_tiers", "asks_connection", "by_qos")

    def __init__(self, tiers: Sequence[Tier], groups_named: bool = False) -> None:
        """Compile.

        Args:
            tiers: In the order that they decide.
            groups_named: A rule somewhere names groups, so joining one needs SHARE; a rule of ``tiers`` does as well.
        """
        self._tiers = tuple(_CompiledTier(tier) for tier in tiers if tier)
        entries = [entry for tier in self._tiers for entry in tier.entries]
        share, publishing, subscribing = int(Action.SHARE), int(PUBLISHING), int(SUBSCRIBING)
        self._groups_named = groups_named or any(entry.actions & share for entry in entries)
        # Decisions about publishing depend on the QoS: a verdict of one is none of another.
        self.by_qos = any(entry.actions & publishing and (entry.qos_min, entry.qos_max) != (0, 2) for entry in entries)
        # Mostly a rule is about both: then one answer is the other.
        alike = all(entry.actions & subscribing in (0, subscribing) for entry in entries)
        self._asked = (Action.SUBSCRIBE,) if alike else (Action.SUBSCRIBE, Action.RECEIVE)
        self._names = {
            (placeholder, at == 0) for entry in entries for at, placeholder in entry.levels if at == entry.without
        }
        self._cacheable = all(tier.common for tier in self._tiers)
        # A rule asks for more of a client than its names: of somebody who is away it is not kept.
        self.asks_connection = any(rule.asks_connection for tier in tiers for rule in tier)
        self._grants: dict[tuple[str, int], Grant] = {}

    def decide(self, action: Action, topic: str, who: Subject, qos: int = 0) -> bool:
        """Return True if a client may do one action with a topic name, or, for SHARE, with a group's name."""
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
        """Return the decision that holds for every client with these rules, None if it depends on the client.

        A client for whom ``has_levels`` is False must not go by it.
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
        """Return True if each name of a client that a deny has as a placeholder is a literal level."""
        return not self._names or all(placeholder.value(who, first) is not None for placeholder, first in self._names)

    def grant(self, topic_filter: str, who: Subject, qos: int = 0) -> Grant:
        """Return how much of a filter, with or without ``$share``, a client may subscribe to and receive.

        GRANTED never lets pass a topic that ``decide`` refuses; PARTIAL may turn out to be nothing.
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
    """One rule in the form that a match finds.

    A deny with placeholders has an entry more for each of them, with the levels before it and ``+/#`` in its place: it
    applies when that placeholder has no value.
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
        """Return True if the rule applies to a topic that its form matches."""
        for at, placeholder in self.levels:
            if at == self.without:
                if placeholder.value(who, at == 0) is not None:
                    return False
            elif not placeholder.is_level(levels[at], who):  # a first level with $ does not match the form
                return False
        return self.everywhere or self._is_for(who)

    def _is_for(self, who: Subject) -> bool:
        """Return True if the conditions beside the filter hold; of an unknown client each deny's do."""
        listener, network = self.rule.listener, self.rule.network
        if listener and listener != who.listener and (self.allow or who.listener):
            return False
        return not network or _lies_in(who.address, network, not self.allow)


class _CompiledTier:
    """The entries of one tier: in a trie for topics, and in two trees for filters, made when first asked for."""

    __slots__ = ("_leading", "_trees", "_trie", "common", "entries")

    def __init__(self, tier: Tier) -> None:
        self.entries = [entry for rule in tier for entry in _entries(rule)]
        self._trie = TopicTrie()
        for number, entry in enumerate(self.entries):
            self._trie.add("/".join(entry.form), number, entry)
        self.common = all(entry.common for entry in self.entries)
        # Denies that begin with a placeholder: if it has no value they reach topics that begin with $ as well.
        self._leading = [entry for entry in self.entries if entry.without == 0]
        self._trees: tuple[FilterTree[_Entry], FilterTree[_Entry]] | None = None

    @property
    def visits(self) -> int:
        """Most nodes that one decision touches."""
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
        """Return the decision that no client's name changes, and whether it may depend on the client."""
        allowed = None
        personal = False
        for entry in self._trie.match(topic):
            if entry.actions & wanted and entry.qos_min <= qos <= entry.qos_max:
                if not entry.common:
                    personal = personal or entry.without is None
                elif not entry.allow:
                    return False, False  # in its tier a deny needs no others
                else:
                    allowed = True
        return allowed, personal

    def covering(self, wanted: int, topic_filter: str, levels: list[str], who: Subject, qos: int) -> bool | None:
        """Return False if a deny covers a filter, else True if an allow does, else None."""
        found = None
        # In a match the wildcards of the filter are levels like others, so all that cover it are found, and some more.
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
        """Return True if a rule of a tree has a topic in common with a filter."""
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
def _lies_in(address: str, network: str, unknown: bool) -> bool:
    """Return whether an address lies in a network, ``unknown`` if one of them is not readable."""
    try:
        given, around = ipaddress.ip_address(address), ipaddress.ip_network(network)
        if isinstance(given, ipaddress.IPv6Address) and given.ipv4_mapped is not None:
            given = given.ipv4_mapped
        mapped = around.network_address.ipv4_mapped if isinstance(around, ipaddress.IPv6Network) else None
        if mapped is not None and around.prefixlen >= V4_MAPPED_BITS:  # written as IPv6: else no IPv4 client is in it
            around = ipaddress.IPv4Network((mapped, around.prefixlen - V4_MAPPED_BITS))
        return given in around
    except ValueError:
        return unknown
