"""P9: after a revoking command has settled, no action uses the revoked rights.

Edges report each byte that they write to the closed listener's clients. From the command's return until the right is
restored, a user must get no CONNACK 0 (if it may not log in), no granted SUBACK, no delivery, and no success code for
later requests. No client may get a later message of this user.
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
    """Revoked rights of a user, from the return of a command on."""

    verb: str
    since: float
    login: bool  # login is denied too


@dataclass
class Sent:
    """First sending time of a user's client requests."""

    user: str
    life: int = 0  # of that name: a deleted and re-added user is another one
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
        self.checked = 0  # packets checked while a user had lost a right
        self.granted = 0  # packets while no user had lost one

    def deny(self, user: str, verb: str, *, login: bool) -> None:
        """Start denying, at a command's return."""
        self.denials[user] = Denial(verb, self._now(), login)

    def allow(self, user: str) -> None:
        """Stop denying, before the right is restored."""
        self.denials.pop(user, None)

    def written(self, edge: str, end: Endpoint, data: bytes) -> None:
        """Check written bytes."""
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
