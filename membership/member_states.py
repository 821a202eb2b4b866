"""States of members: the rules for alive, suspect, dead and left.

Decides the state of every member from messages about it, and refutes messages about the local member by its
incarnation. Probes are in ``probing.py``. Source: SWIM (2002) section 4.2, the order of Alive, Suspect and Confirm;
Lifeguard (2018) section IV.B for confirmations. Two rules are additions: a restarted process is recognized by its
session, and a newer process with the local name makes this one stop sending instead of refuting.
"""

from membership.dissemination import Dissemination
from membership.events import NodeJoin, NodeLeave, NodeUpdate, Superseded
from membership.local_health import LocalHealth
from membership.members import Member, Members, MemberState, MemberView
from membership.metadata import NodeMetadata
from membership.outbox import GossipOutbox
from membership.packets import INCARNATION_MAX, MEMBERS_MAX, Address, Alive, Dead, MemberRecord, Suspect, encode_message
from membership.profiles import Profile
from membership.suspicion import Suspicion
from membership.timers import Timers

__all__ = ["LocalMember", "MemberStates"]


class LocalMember:
    """The local member: the only one whose incarnation this process may raise."""

    def __init__(self, metadata: NodeMetadata, address: Address, session: int, incarnation: int, now: float) -> None:
        self.metadata = metadata
        self.session = session
        self.incarnation = incarnation
        self.address = address
        self.since = now
        self.joined = False  # a full exchange has succeeded
        self.leaving = False
        self.silent = False  # left or superseded: sends no packets

    @property
    def name(self) -> str:
        """The local member's name."""
        return self.metadata.name

    @property
    def alive(self) -> Alive:
        """The local description with the current incarnation."""
        host, port = self.address
        return Alive(self.incarnation, self.session, host, port, self.metadata)

    def raise_incarnation(self, above: int) -> bool:
        """Exceed an incarnation; return False at the maximum, which only holders of the key can cause."""
        if max(self.incarnation, above) >= INCARNATION_MAX:
            return False
        self.incarnation = max(self.incarnation, above) + 1
        return True

    def view(self) -> MemberView:
        """The local member as shown to operators."""
        state: MemberState = "left" if self.leaving else "alive"
        return MemberView(self.name, state, self.incarnation, self.address, self.metadata, self.since, is_self=True)


class MemberStates:
    """The rules that derive states of members from messages."""

    def __init__(
        self,
        profile: Profile,
        local: LocalMember,
        members: Members,
        news: Dissemination,
        health: LocalHealth,
        timers: Timers,
        outbox: GossipOutbox,
    ) -> None:
        self._profile = profile
        self._local = local
        self._members = members
        self._news = news
        self._health = health
        self._timers = timers
        self._outbox = outbox
        self._suspicions: dict[str, Suspicion] = {}

    def alive(self, now: float, message: Alive) -> None:
        """Process a description of a member. A higher incarnation is news, and clears suspicion and death."""
        if message.name == self._local.name:
            self._alive_about_us(message)
            return
        member = self._members.get(message.name)
        if member is None:
            self._add_member(now, message)
        elif message.incarnation > member.incarnation:
            self._renew(now, member, message)

    def _add_member(self, now: float, message: Alive) -> None:
        if len(self._members) >= MEMBERS_MAX - 1:
            self._outbox.counters["refused_member"] += 1
            return
        if message.session == self._local.session or self._members.by_session(message.session) is not None:
            self._outbox.counters["refused_session"] += 1  # a session belongs to one name
            return
        encoded = encode_message(message)
        member = Member(message, "alive", message.incarnation, now, encoded)
        self._members.add(member)
        self._news.add(member.name, encoded)
        self._outbox.tell(NodeJoin(view(member)))

    def _renew(self, now: float, member: Member, message: Alive) -> None:
        taken = self._members.by_session(message.session)
        if message.session == self._local.session or (taken is not None and taken is not member):
            self._outbox.counters["refused_session"] += 1
            return
        before = member.state
        changed = before == "suspect" or _differs(member.alive, message)
        encoded = encode_message(message)
        self._members.replace_alive(member, message, encoded)
        self._end_suspicion(member)
        self._members.set_state(member, "alive", now)
        self._news.add(member.name, encoded)
        if before in ("dead", "left"):
            self._outbox.tell(NodeJoin(view(member)))
        elif changed:
            self._outbox.tell(NodeUpdate(view(member)))

    def _alive_about_us(self, message: Alive) -> None:
        local = self._local
        if message.session == local.session:
            if message.incarnation > local.incarnation:  # not our message; exceed it
                self.refute(message.incarnation)
            return
        newer = message.metadata.process_incarnation > local.metadata.process_incarnation
        if local.joined and newer and message.incarnation > local.incarnation:
            self._outbox.tell(Superseded(message.metadata.process_incarnation))
            self._outbox.counters["superseded"] += 1
            local.silent = True
            self._timers.clear()
        elif message.incarnation >= local.incarnation:  # of our former process
            self.refute(message.incarnation)

    def suspect(self, now: float, message: Suspect) -> None:
        """Process a suspicion: a member missed the accuser's probes."""
        if message.name == self._local.name:
            if message.incarnation >= self._local.incarnation:
                self._outbox.counters["suspected_by_others"] += 1
                self._health.refuted()
                self.refute(message.incarnation)
            return
        member = self._members.get(message.name)
        if member is None or not member.live or message.incarnation < member.incarnation:
            return
        suspicion = self._suspicions.get(message.name)
        if suspicion is None or message.incarnation > member.incarnation:
            self._begin_suspicion(now, member, message)
        elif suspicion.confirm(message.accuser):
            self._timers.set(("suspicion", member.name), suspicion.deadline)
            self._news.add(member.name, encode_message(message))

    def _begin_suspicion(self, now: float, member: Member, message: Suspect) -> None:
        profile, count = self._profile, self._members.live_count
        expected = min(profile.suspicion_confirmations, (count - 1) // 2) if profile.lifeguard else 0
        shortest = profile.suspicion_min_s(count)
        longest = shortest * profile.suspicion_max_multiplier
        suspicion = Suspicion(now, message.accuser, expected, shortest, longest)
        self._suspicions[member.name] = suspicion
        member.incarnation = message.incarnation
        was_alive = member.state == "alive"
        self._members.set_state(member, "suspect", now)
        self._timers.set(("suspicion", member.name), suspicion.deadline)
        self._news.add(member.name, encode_message(message))
        self._outbox.counters["suspicions"] += 1
        if was_alive:
            self._outbox.tell(NodeUpdate(view(member)))

    def suspicion_expired(self, now: float, name: str) -> None:
        """Declare a suspect dead that did not refute in time."""
        member = self._members.get(name)
        if member is not None and member.state == "suspect":
            self._outbox.counters["declared_dead"] += 1
            self.dead(now, Dead(name, member.incarnation, self._local.name))

    def dead(self, now: float, message: Dead) -> None:
        """Process a death of a member; by the member itself, its leave."""
        if message.name == self._local.name:
            if message.incarnation >= self._local.incarnation and not self._local.leaving:
                self._outbox.counters["declared_dead_by_others"] += 1
                self._health.refuted()
                self.refute(message.incarnation)
            return
        member = self._members.get(message.name)
        if member is None or message.incarnation < member.incarnation or not member.live:
            return
        self._end_suspicion(member)
        member.incarnation = message.incarnation
        self._members.set_state(member, "left" if message.accuser == message.name else "dead", now)
        self._news.add(member.name, encode_message(message))
        self._outbox.tell(NodeLeave(view(member)))

    def merge(self, now: float, record: MemberRecord) -> None:
        """Merge one record of a full exchange.

        A member that is dead for the peer only becomes suspect, so that it can still refute. An unknown member that is
        dead for the peer is ignored.
        """
        message, name = record.alive, record.alive.name
        known = name == self._local.name or self._members.get(name) is not None
        if record.state in ("dead", "left") and not known:
            return
        self.alive(now, message)
        if record.state == "left":
            self.dead(now, Dead(name, message.incarnation, name))
        elif record.state != "alive":
            self.suspect(now, Suspect(name, message.incarnation, self._local.name))

    def refute(self, incarnation: int) -> None:
        """Announce the local member as alive, with a higher incarnation."""
        local = self._local
        if local.silent or local.leaving:
            return
        if local.raise_incarnation(incarnation):
            self._outbox.counters["refutations"] += 1
            self._news.add(local.name, encode_message(local.alive))
        else:
            self._outbox.counters["unrefutable"] += 1

    def shift(self, pause_s: float) -> None:
        """Extend suspicions by a pause of this process."""
        for suspicion in self._suspicions.values():
            suspicion.shift(pause_s)

    def _end_suspicion(self, member: Member) -> None:
        if self._suspicions.pop(member.name, None) is not None:
            self._timers.cancel(("suspicion", member.name))


def view(member: Member) -> MemberView:
    """Copy a member for services and operators."""
    alive = member.alive
    return MemberView(member.name, member.state, member.incarnation, member.address, alive.metadata, member.since)


def _differs(old: Alive, new: Alive) -> bool:
    return (old.session, old.host, old.port, old.metadata) != (new.session, new.host, new.port, new.metadata)
