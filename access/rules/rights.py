"""Classes of connections with equal rights, and caches of their decisions, so that messages rarely evaluate rules.

Connections with the same roles and rules share a class. The first 64 classes have a number: a decision for such a class
and a topic is two bits on the topic's route. Decisions that depend on the client, on QoS or RETAIN, and those of later
classes, are in a table of the connection. Changing one number, the epoch, invalidates all of them without visiting
connections. The edge's loop has a compiled equivalent; these classes are the pure form.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from access.rules.rules import Action, CompiledRules, Grant, Subject, Tier

__all__ = ["NO_NUMBER", "ConnectionRights", "RightsClass", "RightsClasses", "RightsKey", "RouteRights"]

NUMBERS = 64  # classes with bits on a route: a machine word for each of two masks
NO_NUMBER = -1
TOPICS_PER_CONNECTION = 64  # in its table; oldest evicted first
TOPIC_CHARACTERS_MAX = 1_024  # of a topic in that table
IDLE_CLASSES = 256  # without a connection, kept because compiling 10 000 rules takes tens of milliseconds
RECLAIM_INTERVAL_S = 10.0  # between two reclaims of numbers, which invalidate all routes' bits
QOS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class RightsKey:
    """Two connections with equal keys have equal rules.

    Attributes:
        names: Of roles and sections of files, known to ``Source``.
        tiers: Rules of a token or an HTTP response.
    """

    names: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()


# Returns the tiers of a key in the order of decision. An unknown name has no rules.
Source: TypeAlias = Callable[[RightsKey], Sequence[Tier]]


class RightsClass:
    """Connections with the same rules; created by ``RightsClasses.join``."""

    __slots__ = ("_changed_at", "_classes", "_policy", "_policy_epoch", "_rules", "connections", "key", "number")

    def __init__(self, classes: "RightsClasses", key: RightsKey, number: int) -> None:
        self._classes = classes
        self.key = key
        self.number = number  # of its bits on routes, NO_NUMBER if it has none
        self.connections = 0
        self._policy = CompiledRules(())
        self._policy_epoch: int | None = None
        self._rules: tuple[tuple[Tier, ...], bool] | None = None
        self._changed_at = classes.steps

    @property
    def epoch(self) -> int:
        """Decisions of another epoch are invalid."""
        return self._classes.epoch

    @property
    def steps(self) -> int:
        """Changes of rules so far."""
        return self._classes.steps

    @property
    def policy(self) -> CompiledRules:
        """The current rules, compiled at the first use after a change."""
        if self._policy_epoch != self._classes.steps:
            rules = self._classes.rules_of(self.key)
            if rules != self._rules:
                if self._rules is not None:  # else no decision used other rules
                    self._changed_at = self._classes.steps
                self._policy, self._rules = CompiledRules(*rules), rules
            self._policy_epoch = self._classes.steps
        return self._policy

    @property
    def changed_at(self) -> int:
        """``steps`` at the last change of its rules; may be too high, never too low."""
        self.policy  # noqa: B018  # compiled if the rules changed
        return self._changed_at


class RightsClasses:
    """All classes of an edge.

    Attributes:
        policy_epoch: Of the cluster's policy with these rules.
        epoch: Of decisions on routes and in tables.
        steps: Changes of rules so far.
    """

    def __init__(self, source: Source, policy_epoch: int = 0, groups_named: bool = False) -> None:
        self._source = source
        self._groups_named = groups_named
        self.policy_epoch = policy_epoch
        self.epoch = 1
        self.steps = 0
        self._classes: dict[RightsKey, RightsClass] = {}
        self._idle: OrderedDict[RightsKey, None] = OrderedDict()
        self._free = list(range(NUMBERS - 1, -1, -1))
        self._used: list[int] = []  # numbers of ended classes, whose bits are still on routes
        self._reclaim_at = 0.0

    def __len__(self) -> int:
        """Return the number of classes, including those without a connection."""
        return len(self._classes)

    def join(self, key: RightsKey, now: float) -> RightsClass:
        """Return the class of a new connection; each join needs one ``leave``."""
        joined = self._classes.get(key)
        if joined is None:
            joined = self._classes[key] = RightsClass(self, key, self._number(now))
        self._idle.pop(key, None)
        joined.connections += 1
        return joined

    def leave(self, left: RightsClass) -> None:
        """Record the end of a connection of a class."""
        left.connections -= 1
        if left.connections == 0:
            self._idle[left.key] = None
            if len(self._idle) > IDLE_CLASSES:
                self._end(next(iter(self._idle)))

    def step(self, source: Source, policy_epoch: int, groups_named: bool = False) -> None:
        """Replace the rules of all classes; earlier decisions are invalid afterwards."""
        self._source = source
        self._groups_named = groups_named
        self.policy_epoch = policy_epoch
        self.steps += 1
        self._void()
        for rights_class in self._classes.values():
            if not self._free:
                break
            if rights_class.number == NO_NUMBER:
                rights_class.number = self._free.pop()

    def rules_of(self, key: RightsKey) -> tuple[tuple[Tier, ...], bool]:
        """Return the tiers of a key, and whether any rule names groups of subscribers."""
        return tuple(self._source(key)), self._groups_named

    def _number(self, now: float) -> int:
        if not self._free and now >= self._reclaim_at:
            # Clients with individual rules may connect and disconnect often: numbers are reused, but rarely.
            for key in [key for key in self._idle if self._classes[key].number != NO_NUMBER]:
                self._end(key)
            if self._used:
                self._reclaim_at = now + RECLAIM_INTERVAL_S
                self._void()
        return self._free.pop() if self._free else NO_NUMBER

    def _void(self) -> None:
        self.epoch += 1
        self._free += self._used
        self._used = []

    def _end(self, key: RightsKey) -> None:
        del self._idle[key]
        ended = self._classes.pop(key)
        if ended.number != NO_NUMBER:
            self._used.append(ended.number)


class RouteRights:
    """Decisions about publishing without RETAIN to one topic, a bit for each numbered class."""

    __slots__ = ("_allowed", "_decided", "_epoch")

    def __init__(self) -> None:
        self._epoch = 0
        self._decided = 0
        self._allowed = 0

    def verdict(self, number: int, epoch: int) -> bool | None:
        """Return the decision of a class, None if there is none of this epoch."""
        if self._epoch != epoch or not self._decided >> number & 1:
            return None
        return bool(self._allowed >> number & 1)

    def note(self, number: int, epoch: int, allowed: bool) -> None:
        """Store a decision."""
        if self._epoch != epoch:
            self._epoch = epoch
            self._decided = self._allowed = 0
        self._decided |= 1 << number
        self._allowed |= allowed << number


class ConnectionRights:
    """Rights of one connection, and its individual decisions."""

    __slots__ = ("_chosen_at", "_epoch", "_has_levels", "_joined_at", "_table", "principal", "rights_class", "who")

    def __init__(
        self,
        rights_class: RightsClass,
        who: Subject,
        principal: object = None,
        former: "ConnectionRights | None" = None,
    ) -> None:
        """former: Rights of the connection before."""
        self.rights_class: RightsClass = rights_class
        self._chosen_at: int = rights_class.steps
        if former is not None and former.rights_class.key == rights_class.key:
            self._chosen_at = former._chosen_at
        self.who = who
        self.principal = principal  # at the time of joining
        self._joined_at = rights_class.steps
        self._epoch = 0
        self._has_levels = False  # decisions of the whole class apply to this client
        self._table: dict[str, int] = {}  # topic -> a bit for each QoS, 0 to 2 without RETAIN, 3 to 5 with RETAIN

    @property
    def is_current(self) -> bool:
        """Whether its class was chosen by the current rules; otherwise its names may belong to another class."""
        return self._joined_at == self.rights_class.steps

    @property
    def changed_at(self) -> int:
        """``steps`` at the last change of the connection's rules."""
        return max(self._chosen_at, self.rights_class.changed_at)

    def judge_publish(self, topic: str, qos: int = 0, retain: bool = False, route: RouteRights | None = None) -> bool:
        """Return whether the connection may publish; caches the decision.

        Args:
            topic: The topic name.
            qos: Of the PUBLISH.
            retain: Of the PUBLISH.
            route: Of the topic, if there is one.
        """
        rights_class = self.rights_class
        number, epoch = rights_class.number, rights_class.epoch
        if self._epoch != epoch:
            self._epoch = epoch
            self._has_levels = rights_class.policy.has_levels(self.who)
            self._table.clear()
        if route is not None and number != NO_NUMBER and not retain and self._has_levels:
            verdict = route.verdict(number, epoch)
            if verdict is None and not rights_class.policy.by_qos:
                verdict = rights_class.policy.decide_for_all(Action.PUBLISH, topic)
                if verdict is not None:
                    route.note(number, epoch, verdict)
            if verdict is not None:
                return verdict
        verdicts = self._table.get(topic)
        if verdicts is None:
            verdicts = self._decide(topic)
            if len(topic) <= TOPIC_CHARACTERS_MAX:
                while len(self._table) >= TOPICS_PER_CONNECTION:
                    del self._table[next(iter(self._table))]
                self._table[topic] = verdicts
        return bool(verdicts >> (qos + 3 * retain) & 1)

    def verdicts(self, topic: str, retain: bool = True) -> tuple[int, bool]:
        """Return the connection's rights to publish to a topic, for a caching caller.

        Returns:
            A bit for each QoS, 0 to 2 without RETAIN, 3 to 5 with it; and whether those without RETAIN apply, at each
                QoS, to all connections of the class. If so, those with RETAIN are valid only for ``retain``.
        """
        rights_class = self.rights_class
        policy = rights_class.policy
        for_all = None
        if rights_class.number != NO_NUMBER and not policy.by_qos and policy.has_levels(self.who):
            for_all = policy.decide_for_all(Action.PUBLISH, topic)
        if for_all is None:
            return self._decide(topic), False
        if for_all and retain and policy.decide(Action.RETAIN, topic, self.who):
            return 0b111111, True
        return 0b111 * for_all, True

    def may_receive(self, topic: str, qos: int = 0) -> bool:
        """Return whether the connection may receive a message of a topic."""
        return self.rights_class.policy.decide(Action.RECEIVE, topic, self.who, qos)

    def may_will(self, topic: str, qos: int, retain: bool) -> bool:
        """Return whether the connection may have a will, at CONNECT and when it is published."""
        actions = (Action.PUBLISH, Action.WILL, Action.RETAIN)[: 3 if retain else 2]
        return all(self.rights_class.policy.decide(action, topic, self.who, qos) for action in actions)

    def grant(self, topic_filter: str, qos: int = 0) -> Grant:
        """Return how much of a filter the connection may subscribe to."""
        return self.rights_class.policy.grant(topic_filter, self.who, qos)

    def _decide(self, topic: str) -> int:
        policy, who = self.rights_class.policy, self.who
        verdicts = 0
        for qos in QOS if policy.by_qos else QOS[:1]:
            if policy.decide(Action.PUBLISH, topic, who, qos):
                verdicts |= 1 << qos
                if policy.decide(Action.RETAIN, topic, who, qos):
                    verdicts |= 8 << qos
        return verdicts if policy.by_qos else verdicts * 0b111
