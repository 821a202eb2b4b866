"""Subscriptions of this edge's ephemeral sessions: the trie, the subscribers of a topic, shared subscriptions' members.

Overlapping subscriptions of one connection give a copy for each identifier, or one (``wire/messages/overlapping.py``).
The trie stores filters, not subscribers, so the cost of a match does not depend on the number of subscribers. Topics
that the same filters match share one tuple of subscribers.
"""

from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary
from zlib import crc32

from edge.clients.client import Client
from edge.loop.state import Sub
from edge.rights.client_rights import ClientRights
from edge.routes.fanout_account import NOBODY, Audience, FanoutAccount, encoding_of
from mqtt.filter_costs import FilterCosts
from mqtt.topic_trie import TopicTrie
from mqtt.topics import matches, parse_shared
from wire.messages.overlapping import identifiers_of, options_of, sharing_a_copy
from wire.messages.sessions import SessionSubscription

__all__ = ["EphemeralSubscriptions"]

MEMBERS_ASKED_MAX = 1_000  # authorized members of a shared subscription for one message: a millisecond


class _Member:
    """One subscription of a connection."""

    __slots__ = ("client", "since", "sub", "subscription")

    def __init__(self, client: Client, subscription: SessionSubscription, since: float) -> None:
        self.client = client
        self.since = since  # seconds of the node's clock
        self.subscription = subscription
        self.sub = subscriber(client, [subscription])


class _Filter:
    """One filter with its subscribers."""

    __slots__ = ("audience", "changed_at", "members", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # never reused
        self.members: dict[int, _Member] = {}  # by connection
        self.changed_at = 0
        self.audience: Audience | None = None  # of topics that no other filter matches


class _Group:
    """The local members of a shared subscription."""

    __slots__ = ("delivered", "members", "numbers", "redispatched", "turn")

    def __init__(self) -> None:
        self.delivered = 0  # copies sent to them
        self.redispatched = 0  # of them, those unacknowledged when the member's connection ended
        self.members: dict[int, _Member] = {}
        self.numbers: list[int] | None = (
            None  # of members, sorted, without those found closed; None: must be sorted again
        )
        self.turn = 0

    def member_at(self, turn: int) -> tuple[int, _Member] | None:
        """Return the member at a round-robin position, with its index; None if all are closed.

        Thousands may be closed but not removed yet: each of them is visited once.
        """
        if self.numbers is None:
            self.numbers = sorted(self.members)
        numbers = self.numbers
        while numbers:
            place = turn % len(numbers)
            member = self.members[numbers[place]]
            if not member.client.conn.closed:
                return place, member
            del numbers[place]
        return None


class EphemeralSubscriptions:
    """Local subscriptions; ``on_change`` is called with each filter after a change of its subscribers."""

    def __init__(
        self, on_change: Callable[[str], None], account: FanoutAccount | None = None, rights: ClientRights | None = None
    ) -> None:
        self._on_change = on_change
        self._rights = rights
        self._account = account or FanoutAccount()
        self._trie = TopicTrie()
        self._costs = FilterCosts(self._trie)
        self._filters: dict[str, _Filter] = {}
        self._size = 0
        self._clock = 0  # number of changes
        self._numbers = 0
        self._combined: WeakValueDictionary[tuple[int, ...], Audience] = WeakValueDictionary()  # by filters' numbers
        self._groups: dict[bytes, _Group] = {}

    def __len__(self) -> int:
        return self._size

    def admits(self, client: Client, names: Sequence[str]) -> list[bool]:
        """Return for each filter of a SUBSCRIBE whether it may be added, given the cost of matching."""
        return self._costs.admits(client.number, client.subscriptions, names)

    def add(self, client: Client, subscription: SessionSubscription, now: float = 0.0) -> None:
        """Add or replace a subscription."""
        name = subscription.topic_filter
        shared = parse_shared(name)
        if shared is not None:
            share = f"{shared[0]}/{shared[1]}".encode()
            group = self._groups.get(share)
            if group is None:
                group = self._groups[share] = _Group()
            members = group.members
            group.numbers = None
        else:
            known = self._filters.get(name)
            if known is None:
                self._numbers += 1
                known = _Filter(self._numbers)
                self._trie.add(name, 0, known)
                self._filters[name] = known
            members = known.members
        self._size += client.number not in members
        members[client.number] = _Member(client, subscription, now)
        if shared is None:
            self._changed(name)

    def remove(self, client: Client, name: str) -> None:
        """Remove a subscription."""
        self._costs.removed(client.number, name)
        shared = parse_shared(name)
        if shared is not None:
            share = f"{shared[0]}/{shared[1]}".encode()
            group = self._groups.get(share)
            if group is None or group.members.pop(client.number, None) is None:
                return
            self._size -= 1
            group.numbers = None
            if not group.members:
                del self._groups[share]
            return
        known = self._filters.get(name)
        if known is None or known.members.pop(client.number, None) is None:
            return
        self._size -= 1
        if not known.members:
            del self._filters[name]
            self._trie.remove(name, 0)
        self._changed(name)

    def ended(self, client: Client) -> None:
        """Forget a closed client, after the removal of its last subscription."""
        self._costs.forget(client.number)

    def released(self, client: Client, name: str) -> None:
        """Stop holding a subscription's copies."""
        known = self._filters.get(name)
        member = known.members.get(client.number) if known is not None else None
        if member is not None:
            member.sub = subscriber(client, [member.subscription])
            self._changed(name)

    def _changed(self, name: str) -> None:
        self._clock += 1
        known = self._filters.get(name)
        if known is not None:
            known.changed_at = self._clock
            known.audience = None
        self._on_change(name)

    def subscribers(self, topic: str) -> Audience:
        """Return the subscribers of a topic, one per connection, without unauthorized ones."""
        audience = self._matching(topic)
        rights = self._rights
        if rights is None or not rights.judges:
            return audience
        subs = tuple(sub for sub in audience.subs if self._may_receive(rights, sub, topic))
        if len(subs) == len(audience.subs):
            return audience
        more = sum(len(sub.copies) for sub in subs)
        return Audience(subs, self._account, audience.made_at, own_copies=more) if subs else NOBODY

    def _may_receive(self, rights: ClientRights, sub: Sub, topic: str) -> bool:
        """Return whether a subscriber may have a topic; always with wholly granted filters."""
        client = sub.conn.context
        if not isinstance(client, Client):
            return False
        return not client.partial or rights.may_receive(client, topic, sub.qos)

    def _matching(self, topic: str) -> Audience:
        found: list[_Filter] = self._trie.match(topic)
        if not found:
            return NOBODY
        if len(found) > 1:
            return self._combination(found)
        only = found[0]
        if only.audience is None:
            subs = _grouped([member.sub for member in only.members.values()])
            only.audience = Audience(subs, self._account, self._clock)
        return only.audience

    def _combination(self, found: list[_Filter]) -> Audience:
        found.sort(key=_number)
        key = tuple(known.number for known in found)
        audience = self._combined.get(key)
        changed_at = max(known.changed_at for known in found)
        if audience is None or audience.made_at < changed_at:
            audience = self._combined[key] = self._merge(found)
        return audience

    def _merge(self, found: list[_Filter]) -> Audience:
        """Merge the subscribers of several filters; most connections have subscribed to one of them only."""
        largest = max(found, key=_size)
        merged = {number: member.sub for number, member in largest.members.items()}
        several: set[int] = set()
        for known in found:
            if known is not largest:
                for number, member in known.members.items():
                    if number in merged:
                        several.add(number)
                    else:
                        merged[number] = member.sub
        for number in several:
            of_one = [known.members[number] for known in found if number in known.members]
            merged[number] = subscriber(of_one[0].client, [one.subscription for one in of_one])
        more = sum(len(merged[number].copies) for number in several)
        return Audience(_grouped(list(merged.values())), self._account, self._clock, len(several), more)

    # --- for operators' queries

    def matching(self, topic: str) -> Iterator[tuple[int, SessionSubscription, str]]:
        """Yield (connection, subscription, share or "") of all matches of a topic, including shared subscriptions."""
        for known in list(self._trie.match(topic)):
            for number, member in list(known.members.items()):
                yield number, member.subscription, ""
        for share, group in list(self._groups.items()):
            text = share.decode()
            if matches(text.split("/", 1)[1], topic):
                for number, member in list(group.members.items()):
                    yield number, member.subscription, text

    def since(self, client: Client, name: str) -> float | None:
        """Return when a client last subscribed to a filter, in seconds of the node's clock."""
        shared = parse_shared(name)
        share = f"{shared[0]}/{shared[1]}".encode() if shared is not None else b""
        known = self._groups.get(share) if share else self._filters.get(name)
        member = known.members.get(client.number) if known is not None else None
        return member.since if member is not None else None

    def filters(self) -> list[str]:
        """Return the filters of ordinary subscriptions."""
        return list(self._filters)

    def shares(self) -> list[bytes]:
        """Return the shared subscriptions with local members."""
        return list(self._groups)

    def member_clients(self, share: bytes) -> list[Client]:
        """Return the local members of a shared subscription."""
        group = self._groups.get(share)
        return [member.client for member in group.members.values()] if group is not None else []

    def turn(self, share: bytes) -> int:
        """Return the connection that is next in a shared subscription, 0 if there is none; the position stays."""
        group = self._groups.get(share)
        found = group.member_at(group.turn) if group is not None else None
        return found[1].client.number if found is not None else 0

    def counts(self, share: bytes) -> tuple[int, int]:
        """Return the number of copies sent to local members, and of those redispatched to others."""
        group = self._groups.get(share)
        return (group.delivered, group.redispatched) if group is not None else (0, 0)

    def note_redispatched(self, share: bytes) -> None:
        """Count a copy that leaves a member after the end of its connection."""
        group = self._groups.get(share)
        if group is not None:
            group.redispatched += 1

    @property
    def shared(self) -> int:
        """Number of shared subscriptions' members here."""
        return sum(len(group.members) for group in self._groups.values())

    def members(self, share: bytes) -> int:
        """Return the number of a shared subscription's local members."""
        group = self._groups.get(share)
        return 0 if group is None else len(group.members)

    def has_member(self, share: bytes, topic: bytes) -> bool:
        """Return whether ``pick`` would find a local member for a topic."""
        group = self._groups.get(share)
        return group is not None and self._member(group, group.turn, topic) is not None

    def pick(self, share: bytes, topic: bytes, *, sticky: bool = False) -> Sub | None:
        """Return the next local member of a shared subscription, or the one for a topic; None if none may receive
        it.
        """
        group = self._groups.get(share)
        if group is None:
            return None
        found = self._member(group, crc32(b"member" + topic) if sticky else group.turn, topic)
        if found is None:
            return None
        place, member = found
        group.delivered += 1
        if not sticky:
            group.turn = place + 1
        return subscriber(member.client, [member.subscription])

    def refuses(self, share: bytes, topic: bytes) -> bool:
        """Return whether a shared subscription has local members, but none of them may receive a topic."""
        group = self._groups.get(share)
        return group is not None and group.member_at(group.turn) is not None and not self.has_member(share, topic)

    def _member(self, group: _Group, turn: int, topic: bytes) -> tuple[int, _Member] | None:
        """Return the first member from a position on that may receive a topic, with its index."""
        found, rights = group.member_at(turn), self._rights
        if found is None or rights is None or not rights.judges:
            return found
        for step in range(min(len(group.members), MEMBERS_ASKED_MAX)):
            found = group.member_at(turn + step)
            if found is None:
                return None
            client, subscription = found[1].client, found[1].subscription
            whole = subscription.topic_filter not in client.partial
            if whole or rights.may_receive(client, topic.decode(), subscription.qos):
                return found
        return None


def _number(known: _Filter) -> int:
    return known.number


def _size(known: _Filter) -> int:
    return len(known.members)


def _grouped(subs: list[Sub]) -> tuple[Sub, ...]:
    """Return subscribers sorted for a Route: neighbours share an encoding."""
    if len({encoding_of(sub) for sub in subs}) > 1:
        subs.sort(key=encoding_of)
    return tuple(subs)


def subscriber(client: Client, subscriptions: list[SessionSubscription]) -> Sub:
    """Return the subscriber for all matching subscriptions of a connection, with its copies."""
    # Held while any of them is: a later message of the topic must not overtake a held one.
    held = bool(client.holds) and any(subscription.topic_filter in client.holds for subscription in subscriptions)
    if len(subscriptions) == 1:
        one = subscriptions[0]
        return Sub(client.conn, one.qos, one.no_local, one.retain_as_published, identifiers_of(subscriptions), held)
    copies = tuple(copy for group in sharing_a_copy(subscriptions) for copy in _copies(client, group, held=held))
    if len(copies) == 1:
        return copies[0]
    return Sub(client.conn, max(copy.qos for copy in copies), held=held, copies=copies)


def _copies(client: Client, group: list[SessionSubscription], *, held: bool) -> Iterator[Sub]:
    """Yield the copy of subscriptions that share one: two if No Local applies to only a part of them [MQTT-3.8.3-3]."""
    local = [subscription for subscription in group if not subscription.no_local]
    yield Sub(client.conn, *_positional(group, no_local=len(local) < len(group)), held)
    if 0 < len(local) < len(group):
        yield Sub(client.conn, *_positional(local, no_local=False), held, own_only=True)


def _positional(group: list[SessionSubscription], *, no_local: bool) -> tuple[int, bool, bool, bytes]:
    options = options_of(group)
    return options.qos, no_local, options.retain_as_published, options.identifiers
