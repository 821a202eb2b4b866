"""Output of one call of the SWIM core, collected until it returns.

Decides the piggybacked messages: first the accusation against the receiver, so that it can refute at once (the buddy
system of Lifeguard, section IV.C; extended to dead members, which heals one-sided partitions). News follows in the
order of ``dissemination.py``, as much as fits.
"""

from collections import Counter

from membership.dissemination import Dissemination
from membership.envelope import BODY_BYTES_MAX
from membership.events import NodeEvent, OutgoingDatagram, StateExchange, SwimReady
from membership.members import Member, Members
from membership.packets import MESSAGES_MAX, NAMES, Address, Dead, Message, Suspect, encode_message, join_messages
from membership.profiles import Profile

__all__ = ["GossipOutbox"]

_ARRAY_HEAD_BYTES = 3


class GossipOutbox:
    """Messages, exchanges and events of one call."""

    def __init__(self, profile: Profile, members: Members, dissemination: Dissemination, local_name: str) -> None:
        self._profile = profile
        self._members = members
        self._dissemination = dissemination
        self._local_name = local_name
        self._messages: list[OutgoingDatagram] = []
        self._exchanges: list[StateExchange] = []
        self._events: list[NodeEvent] = []
        self.counters: Counter[str] = Counter()

    def send(self, to: Member, message: Message) -> None:
        """Send one message with as much news as fits."""
        encoded = [encode_message(message)]
        if not to.live or (self._profile.lifeguard and to.state == "suspect"):
            encoded.append(self._accusation(to))
        self.counters["sent_" + NAMES[type(message)]] += 1
        self._emit(to, encoded)

    def gossip(self, to: Member) -> None:
        """Send only news; no packet without news."""
        if self._dissemination:
            self.counters["sent_gossip"] += 1
            self._emit(to, [])

    def exchange(self, address: Address) -> None:
        """Request a full exchange."""
        self._exchanges.append(StateExchange(address))

    def tell(self, event: NodeEvent) -> None:
        """Add an event for the service."""
        self._events.append(event)

    def flush(self, next_deadline: float) -> SwimReady:
        """Return the collected output, and clear it."""
        ready = SwimReady(tuple(self._messages), tuple(self._exchanges), tuple(self._events), next_deadline)
        self._messages, self._exchanges, self._events = [], [], []
        return ready

    def _accusation(self, member: Member) -> bytes:
        if member.state == "suspect":
            return encode_message(Suspect(member.name, member.incarnation, self._local_name))
        accuser = member.name if member.state == "left" else self._local_name
        return encode_message(Dead(member.name, member.incarnation, accuser))

    def _emit(self, to: Member, encoded: list[bytes]) -> None:
        budget = BODY_BYTES_MAX - _ARRAY_HEAD_BYTES - sum(map(len, encoded))
        limit = self._profile.retransmit_limit(self._members.live_count)
        encoded += self._dissemination.take(budget, MESSAGES_MAX - len(encoded), limit)
        if encoded:
            self._messages.append(OutgoingDatagram(to.address, to.session, join_messages(encoded)))
