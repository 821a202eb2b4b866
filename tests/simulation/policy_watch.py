"""P9: when a verb that takes rights has returned as settled, nothing is done by the old ones any more.

Edges tell each byte that they write to the closed listener's clients, at the time at which it leaves. From the return
of a verb until the order that gives the right back, a user must see no CONNACK 0 (where it took the login), no granted
SUBACK, no delivery, no good answer to what it sent since then; and nobody may be given what it sent since then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mqtt.codec import StreamDecoder
from mqtt.packets import Connack, Packet, Puback, Publish, Pubrec, Suback
from mqtt.reasons import FAILURE
from stratamq.history.payloads import read_payload
from tests.simulation.network import Endpoint

__all__ = ["Denial", "Sent", "Watch"]

VIOLATIONS_MAX = 20


@dataclass(frozen=True)
class Denial:
    """What a user may not do, from the return of a verb on."""

    verb: str
    since: float
    login: bool  # also not come in


@dataclass
class Sent:
    """When a user's client sent what, for the first time."""

    user: str
    life: int = 0  # of that name: one that was deleted and added again is another user
    payloads: dict[str, float] = field(default_factory=dict)
    identifiers: dict[int, float] = field(default_factory=dict)


class Watch:
    """The checker of one seed.

    Args:
        now: Returns the time of the simulation.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._decoders: dict[Endpoint, StreamDecoder] = {}
        self.clients: dict[str, Sent] = {}  # by host
        self.authors: dict[str, Sent] = {}  # by payload
        self.denials: dict[str, Denial] = {}  # by user
        self.violations: list[str] = []
        self.checked = 0  # what was written to or from somebody who had lost a right
        self.granted = 0  # what was written while nobody had

    def deny(self, user: str, verb: str, *, login: bool) -> None:
        """A verb has returned."""
        self.denials[user] = Denial(verb, self._now(), login)

    def allow(self, user: str) -> None:
        """The right is about to be given back."""
        self.denials.pop(user, None)

    def written(self, edge: str, end: Endpoint, data: bytes) -> None:
        """Judge what leaves."""
        sent = self.clients.get(end.other.host)
        if sent is None:
            return
        decoder = self._decoders.setdefault(end, StreamDecoder(5))
        for packet in decoder.feed(data):
            what = self._wrong(sent, packet) or self._wrong_for_author(packet)
            if what and len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(f"P9: {edge} wrote {end.other.host} {what} at {self._now():.3f}")

    def _wrong(self, sent: Sent, packet: Packet) -> str:
        denial = self.denials.get(sent.user)
        if denial is None:
            self.granted += isinstance(packet, Connack | Puback | Publish)
            return ""
        self.checked += 1
        what = ""
        if isinstance(packet, Connack):
            what = "CONNACK 0" if packet.reason_code == 0 and denial.login else ""
        elif isinstance(packet, Suback):
            what = "a granted SUBACK" if packet.reason_codes[0] < FAILURE else ""
        elif isinstance(packet, Publish):
            what = f"a delivery of {packet.topic_name}"
        elif isinstance(packet, Puback | Pubrec) and packet.reason_code < FAILURE:
            began = sent.identifiers[packet.packet_identifier]
            what = f"{type(packet).__name__} {packet.reason_code:#x}" if began >= denial.since else ""
        return what and f"{what}, {_since(denial, self._now())}"

    def _wrong_for_author(self, packet: Packet) -> str:
        if not isinstance(packet, Publish):
            return ""
        payload = read_payload(packet.payload)[0]
        author = self.authors.get(payload)
        denial = self.denials.get(author.user) if author is not None else None
        if author is None or denial is None:
            return ""
        self.checked += 1
        late = author.payloads[payload] >= denial.since
        return f"{payload!r} of {author.user}, {_since(denial, self._now())}" if late else ""


def _since(denial: Denial, now: float) -> str:
    return f"{now - denial.since:.3f} s after `{denial.verb}` was settled"
