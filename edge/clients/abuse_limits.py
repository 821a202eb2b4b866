"""Abuse limits of an edge's clients: temporary refusals after failed logins, flapping or takeovers.

| event | bound | refused |
|---|---|---|
| wrong credentials | ``failed_logins_max`` a minute of one address | the address, for 5 minutes |
| ends of connections | ``flapping_ends_max`` a minute of one client ID from one address | this pair, for 5 minutes |
| takeovers | ``takeovers_max`` a minute of one client ID | a CONNECT of that client ID, for a delay that doubles |
| clients of a user | limit ``connections_user_max`` | a further one, with 0x97 |
| CONNECTs of a user | limit ``connect_rate_user_max`` a second | a further one, with 0x9F |
| bytes sent | limit ``daily_bytes_max`` of its user | the user until midnight UTC, with 0x97, after processing them |

A CONNECT refused for its address or client ID gets 0x9F before its credentials are checked. Behind TLS the edge closes
an address with failed logins before the handshake, which is the most expensive step. Events at one address never cause
a refusal of a user or client ID at another address. These are not bans: other edges do not know them.
"""

from collections import Counter
from collections.abc import Callable

from access.limits.buckets import Buckets
from access.limits.flapping import FailedLogins, Flapping
from access.limits.quotas import DailyBytes
from access.limits.takeovers import Takeovers
from conf.addresses import TrustedNetworks
from edge.clients.client import Client
from edge.clients.clients import Clients
from edge.listeners.admission_control import AdmissionControl
from edge.login.refusal_records import refusal_record
from edge.loop.state import LoopConnection
from edge.node.node import EdgeNode
from mqtt.reasons import ReasonCode

__all__ = ["AbuseLimits"]

WILLS_BURST_S = 2.0  # a primary sends a will again each second; the burst admits such repeats


class AbuseLimits:
    """The abuse limits of one edge.

    Args:
        node: This edge.
        clients: Its connections.
        utc: Seconds since the epoch, by this machine's clock.
    """

    def __init__(self, node: EdgeNode, clients: Clients, utc: Callable[[], float]) -> None:
        self._node = node
        self._clients = clients
        self._utc = utc
        self._daily = DailyBytes()
        self._connects = Buckets(1.0, 1.0)  # of users with a limit, in seconds: a burst of one second
        self._connections_by_user: dict[str, Counter[str]] = {}  # user with such a limit -> its client IDs here
        self._failed_logins: FailedLogins | None = None
        self._flapping: Flapping | None = None
        self._takeovers: Takeovers | None = None
        self._wills: Buckets | None = None
        self.bound()

    def bound(self) -> None:
        """Apply the node's current limits. A current refusal keeps its duration unless the limit was removed."""
        limits = self._node.limits
        no_networks = TrustedNetworks()  # load balancers are exempt by ``ConnectionSlot.metered``
        failures, ends, free = limits.failed_logins_max, limits.flapping_ends_max, limits.takeovers_max
        if not failures or self._failed_logins is None:
            self._failed_logins = FailedLogins(no_networks, failures) if failures else None
        else:
            self._failed_logins.strikes.limit = failures
        if not ends or self._flapping is None:
            self._flapping = Flapping(no_networks, ends) if ends else None
        else:
            self._flapping.strikes.limit = ends
        if not free or self._takeovers is None:
            self._takeovers = Takeovers(free) if free else None
        else:
            self._takeovers.free = free
        rate = limits.will_rate_max
        self._wills = Buckets(rate, max(1.0, rate * WILLS_BURST_S)) if rate else None

    # --- new connections

    def refusal(self, admission: AdmissionControl, address: str, *, secure: bool) -> str:
        """Return "", or the counter of the refusal of a new connection before its first byte is read.

        Args:
            admission: Of its listener.
            address: Of the client, "" if unknown.
            secure: A TLS handshake would follow.
        """
        now = self._node.now
        failed_logins = self._failed_logins if secure and admission.is_metered(address) else None
        if failed_logins is not None and failed_logins.refused_s(address, now):
            return "refused_failed_logins"
        return admission.refusal(address, now)

    def connect_refusal(self, client: Client, client_id: str) -> int:
        """Return 0, or the reason code if the address, or the client ID at that address, is refused."""
        seat, now = client.seat, self._node.now
        if seat is None or not seat.metered:
            return 0
        if self._failed_logins is not None and self._failed_logins.refused_s(seat.address, now):
            return self._refused("failed_logins", client)
        if self._flapping is not None and client_id and self._flapping.refused_s(client_id, seat.address, now):
            return self._refused("flapping", client)
        return 0

    def takeover_refusal(self, client: Client) -> int:
        """Return 0, or the reason code while the client ID of an authenticated client is taken over too often."""
        if self._takeovers is not None and self._takeovers.refused_s(client.client_id, self._node.now):
            return self._refused("takeovers", client)
        return 0

    def _refused(self, why: str, client: Client, code: ReasonCode = ReasonCode.CONNECTION_RATE_EXCEEDED) -> int:
        self._node.count(f"refused_{why}")
        self._node.audit(refusal_record(client, code, why.replace("_", " ")))
        return code

    # --- daily quotas

    def is_metered(self, client: Client) -> bool:
        """Return whether the bytes of an authenticated client count."""
        return _quota(client) > 0

    def quota_refusal(self, client: Client) -> int:
        """Return 0, or the reason code if the user has used up its day's bytes or has too many clients here."""
        quota, most, rate = _quota(client), client.known_bounds.connections_user_max, _connect_rate(client)
        if rate and not self._connects.take(client.owner, self._node.now, 1.0 / rate):
            return self._refused("user_connects", client)
        if quota and not self._daily.left(client.owner, quota, self._utc()):
            return self._refused("daily_bytes", client, ReasonCode.QUOTA_EXCEEDED)
        if not (most and client.owner):
            return 0
        held = self._connections_by_user.get(client.owner, ())
        if client.client_id not in held and len(held) >= most:  # a takeover of its own client ID adds none
            return self._refused("user_connections", client, ReasonCode.QUOTA_EXCEEDED)
        self.recount(client)
        return 0

    def recount(self, client: Client) -> None:
        """Count a client of a user with a connection limit, even beyond the limit."""
        if client.known_bounds.connections_user_max and client.owner and not client.counted_as:
            self._connections_by_user.setdefault(client.owner, Counter())[client.client_id] += 1
            client.counted_as = client.owner

    def sent(self, conn: LoopConnection, octets: int) -> None:
        """Count bytes that a metered client has sent; disconnect it beyond its quota."""
        client = conn.context
        if not isinstance(client, Client):
            return
        quota, now = _quota(client), self._utc()
        if not quota or self._daily.spend(client.owner, octets, quota, now):
            return
        self._daily.spend(client.owner, self._daily.left(client.owner, quota, now), quota, now)
        if not conn.closed:
            self._refused("daily_bytes", client, ReasonCode.QUOTA_EXCEEDED)
            self._clients.error(conn, ReasonCode.QUOTA_EXCEEDED)

    # --- events

    def login_failed(self, client: Client) -> None:
        """Count wrong credentials; a backend error does not count."""
        seat = client.seat
        if self._failed_logins is None or seat is None or not seat.metered:
            return
        if self._failed_logins.failed(seat.address, self._node.now):  # behind TLS its later CONNECTs are not read
            record = refusal_record(client, ReasonCode.CONNECTION_RATE_EXCEEDED, "failed logins")
            self._node.audit(record)

    def taken_over(self, client_id: str) -> None:
        """Count a takeover that ended a connection of this edge."""
        if self._takeovers is not None:
            self._takeovers.taken(client_id, self._node.now)

    def may_fire_will(self) -> bool:
        """Consume one will of the rate; return False if the rate is used up."""
        return self._wills is None or self._wills.take("", self._node.now)

    def will_at(self) -> float:
        """Return when the next will may be published."""
        now = self._node.now
        return now if self._wills is None else now + self._wills.wait_s("", now)

    # --- a part of edge/access.py

    def closed(self, client: Client, why: int) -> None:
        """Free the slot of a closed connection, and count its end if it had a session."""
        del why
        if client.counted_as:
            self._forget_of_user(client)
        seat = client.seat
        if seat is None and client.first_bytes is not None:
            seat = client.first_bytes.seat  # closed before its CONNECT
        if seat is None:
            return
        seat.leave()
        if self._flapping is not None and seat.metered and client.owner_epoch:
            self._flapping.ended(client.client_id, seat.address, self._node.now)

    def _forget_of_user(self, client: Client) -> None:
        user, client.counted_as = client.counted_as, ""
        held = self._connections_by_user[user]
        held[client.client_id] -= 1
        if not held[client.client_id]:
            del held[client.client_id]
        if not held:
            del self._connections_by_user[user]


def _connect_rate(client: Client) -> int:
    """Return the user's CONNECTs a second, 0 for no limit and for an anonymous client."""
    return client.known_bounds.connect_rate_user_max if client.owner else 0


def _quota(client: Client) -> int:
    """Return the user's bytes a day, 0 for no limit and for an anonymous client."""
    return client.bounds.daily_bytes_max if client.bounds is not None and client.owner else 0
