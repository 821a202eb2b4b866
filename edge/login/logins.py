"""Logins: runs the chain of a listener for each CONNECT, and for re-authentication.

A login that needs a job is queued by kind, bounded, within the connect timeout; results are handled in the next
iteration. A decision that waited is checked again before its CONNACK, and the chain runs again if permissions were
removed meanwhile. Source: docs/adr/0034-access.md.

| state of a login | holds | transition |
|---|---|---|
| none | no data | CONNECT, or AUTH 0x19 of an open client: chain; without any check: unchecked |
| unchecked | no data | checked again before CONNACK: none, or chain |
| waits for a job | the ticket of its chain; the client is not read | the result: chain; no queue or a full one: refused
|
| waits for AUTH | the same, and the client is read | AUTH 0x18: chain; another packet: an error |
| accepted | the credentials, until CONNACK is written | checked again: none, refused, or chain |
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from access.identity.chain import ANONYMOUS, Admitted, LoginPending, LoginRefused, Outcome, Ticket
from access.identity.principal import Credentials, Principal, TimePoint
from access.identity.scram_step import Challenge, ClientData
from conf.events import say
from edge.login.auth_jobs import AuthJobs
from edge.login.auth_packets import Authentication, encode_auth, read_auth
from edge.login.certificate_facts import CertificateReader, FromHeader, InvalidCertificate, facts_of
from edge.login.chains import Chains
from edge.login.credentials import credentials_of
from edge.login.live_sweep import LiveSweep
from edge.login.refusal_records import refusal_record
from edge.loop.state import LoopConnection
from edge.node.limits import ListenerPolicy
from edge.node.node import EdgeNode
from edge.node.ports import ClientIO
from mqtt.errors import RemoteProtocolError
from mqtt.packets import Connect
from mqtt.properties import PropertyId
from mqtt.reasons import ReasonCode

__all__ = ["ClientLogins", "ConnectingClient", "Done", "LoginReplies"]

logger = logging.getLogger(__name__)

UNCHECKED = object()  # login of a client without any check, until CONNACK is written
CLOCK_CHECK_S = 1.0  # between checks of the wall clock, which may be set, for expired principals
RENEWAL_NS = 250_000_000  # of a connection's rate: re-authentication runs the chain and compiles rules
RENEWED_FILTER_NS = 2_000_000  # and for each of its filters, which are authorized: 20 us, 150 with many rules
NAMES = {  # of counters, by the code of the refusal
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "bad_credentials",
    ReasonCode.NOT_AUTHORIZED: "not_authorized",
    ReasonCode.BANNED: "banned",
    ReasonCode.BAD_AUTHENTICATION_METHOD: "method",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "client_id",
    ReasonCode.SERVER_UNAVAILABLE: "backend",
    ReasonCode.SERVER_BUSY: "busy",
}


class AdmittedClient(Protocol):
    """The slot of a connection at its listener."""

    address: str


class ConnectingClient(Protocol):
    """A client as its login uses it."""

    conn: LoopConnection
    number: int
    policy: ListenerPolicy
    connect: Connect | None
    authentication: Authentication | None
    principal: Principal | None
    client_id: str
    clean: bool
    login: object
    subscriptions: dict[str, Any]

    @property
    def was_open(self) -> bool:
        """Whether it has CONNACK."""

    @property
    def seat(self) -> AdmittedClient | None:
        """Its slot; None in a loop without sockets."""

    @property
    def first_bytes(self) -> FromHeader | None:
        """PROXY header, None without one."""


class LoginReplies(Protocol):
    """Responses to clients, sent by ``edge.clients``."""

    def refused(self, client: Any, code: ReasonCode, *, guessed: bool) -> None:
        """Refuse a client, or end it if it is open; ``guessed``: its credentials were wrong."""

    def expired(self, client: Any) -> None:
        """End a client with an expired principal."""

    def renewed(self, client: Any) -> None:
        """Give an open client the permissions of its new identity."""


Done: TypeAlias = Callable[[int, Ticket, object], None]
GoOn: TypeAlias = Callable[[Any], None]


class _Login:
    """One pending login; ``go_on`` is called when the client is accepted."""

    __slots__ = ("again", "credentials", "go_on", "taken", "ticket")

    def __init__(self, credentials: Credentials, go_on: GoOn, taken: int, again: bool) -> None:
        self.credentials = credentials
        self.go_on = go_on
        self.taken = taken  # number of permission removals at its first step or its last client message
        self.again = again  # the chain runs again, because permissions were removed
        self.ticket: Ticket | None = None


class ClientLogins:
    """The logins of one edge.

    Args:
        node: This edge.
        loop: Writes AUTH.
        chains: By listener.
        client_of: Returns a connection by its number.
        clients: Returns all of them.
        read_certificate: Returns the facts of a connection's certificate.
        utc: Seconds since the epoch, by this machine's clock.
    """

    def __init__(
        self,
        node: EdgeNode,
        loop: ClientIO,
        chains: Chains,
        client_of: Callable[[int], ConnectingClient | None],
        clients: Callable[[], Sequence[ConnectingClient]],
        read_certificate: CertificateReader,
        utc: Callable[[], float],
    ) -> None:
        self._node = node
        self._loop = loop
        self._chains = chains
        self._client_of = client_of
        self._read_certificate = read_certificate
        self._utc = utc
        self._queues: dict[str, AuthJobs] = {}
        self._results: deque[tuple[int, Ticket, object]] = deque()  # at most one of each waiting login
        self._taken = 0  # how often permissions were removed
        self._ends: dict[int, float] = {}  # number of a connection -> expiry of its principal, utc
        self._next_ends: list[tuple[float, int]] = []  # a heap of the same, with outdated ones
        self._check_at = 0.0
        self._answers: LoginReplies | None = None
        self._sweep: LiveSweep[ConnectingClient] = LiveSweep(clients, lambda client: self.end(client, "files of users"))

    def join(self, answers: LoginReplies) -> None:
        """Set the receiver of responses to clients."""
        self._answers = answers

    def add_job_queues(self, desks: Mapping[str, AuthJobs]) -> None:
        """Add queues for jobs of these kinds; without a queue a job fails, and its client gets 0x88."""
        self._queues.update(desks)

    # --- packets

    def begin(self, client: ConnectingClient, go_on: GoOn) -> None:
        """Start the chain of a well-formed CONNECT."""
        packet = client.connect
        assert packet is not None
        if self._needs_no_check(client, packet):
            client.principal, client.login = Principal("", ANONYMOUS, client.client_id), UNCHECKED
            self._chains.of(client.policy).outcomes["admitted"] += 1
            go_on(client)
            return
        try:
            credentials = self._credentials(client, packet)
        except InvalidCertificate as error:
            self._node.count(str(error))
            self._refuse(client, LoginRefused(ReasonCode.NOT_AUTHORIZED, "a certificate that names nobody"))
            return
        if credentials.method:
            client.authentication = Authentication(credentials.method)
        self._begin(client, credentials, go_on)

    def _needs_no_check(self, client: ConnectingClient, packet: Connect) -> bool:
        """Return whether a client needs no check: no steps, no bans, no certificate, no method."""
        return (
            self._chains.of(client.policy).asks_nothing
            and not len(self._chains.bans.view.bans)
            and client.first_bytes is None
            and PropertyId.AUTHENTICATION_METHOD not in packet.properties
            and self._has_no_certificate(client)
        )

    def _has_no_certificate(self, client: ConnectingClient) -> bool:
        try:
            return self._read_certificate(client.conn) is None
        except ValueError:
            return False

    def handle_auth(self, client: ConnectingClient, first_byte: int, body: bytes) -> None:
        """Handle an AUTH packet: the next message of an exchange, or the start of a re-authentication.

        Raises:
            MqttError: It is malformed or not expected.
        """
        code, data = read_auth(first_byte, body, self._node.packet_limits, client.authentication)
        login = client.login
        ticket = login.ticket if isinstance(login, _Login) else None
        if code == ReasonCode.RE_AUTHENTICATE and client.connect is None:
            self._loop.charge(client.conn, 1, RENEWAL_NS + len(client.subscriptions) * RENEWED_FILTER_NS)
            self._renew(client, data)
        elif code != ReasonCode.CONTINUE_AUTHENTICATION or ticket is None or not isinstance(ticket.job, Challenge):
            raise RemoteProtocolError("AUTH out of turn [MQTT-4.12.0-3]")
        else:
            self._resume(client, ticket, ClientData(data))

    def _credentials(self, client: ConnectingClient, packet: Connect) -> Credentials:
        facts = facts_of(client.conn, client.policy, client.first_bytes, self._read_certificate)
        if facts is not None and facts.of_cluster and not facts.gateway:
            self._node.count("certificates_of_nodes_refused")
        address = client.seat.address if client.seat is not None else ""
        secure = client.conn.tls is not None
        return credentials_of(packet, client.policy.name, address, certificate=facts, secure=secure)

    def _renew(self, client: ConnectingClient, data: bytes) -> None:
        """Run the chain again for an open client; it may extend its login as the same user, never become another."""
        principal, authentication = client.principal, client.authentication
        assert principal is not None and authentication is not None
        packet = Connect(client.client_id)
        try:
            credentials = self._credentials(client, packet)
        except InvalidCertificate as error:
            self._node.count(str(error))
            self._refuse(client, LoginRefused(ReasonCode.NOT_AUTHORIZED, "a certificate that names nobody"))
            return
        self._begin(client, replace(credentials, method=authentication.method, data=data), self._renewed)

    def _renewed(self, client: ConnectingClient) -> None:
        authentication = client.authentication
        assert authentication is not None
        client.login = None
        assert self._answers is not None
        self._answers.renewed(client)
        self._loop.write(client.conn, encode_auth(authentication, authentication.final, ends=True))
        self._loop.resume(client.conn)

    # --- the chain

    @property
    def time_point(self) -> TimePoint:
        """The time of this iteration."""
        return TimePoint(self._node.now, self._utc())

    def _begin(self, client: ConnectingClient, credentials: Credentials, go_on: GoOn, *, again: bool = False) -> None:
        client.login = _Login(credentials, go_on, self._taken, again)
        self._take(client, self._chains.of(client.policy).begin(credentials, self.time_point))

    def _resume(self, client: ConnectingClient, ticket: Ticket, result: object) -> None:
        login = client.login
        assert isinstance(login, _Login)
        login.ticket = None
        if isinstance(result, ClientData):
            login.taken = self._taken  # earlier steps had no data to check, and this step checks it only now
        self._take(client, self._chains.of(client.policy).resume(ticket, result, self.time_point))

    def _take(self, client: ConnectingClient, outcome: Outcome) -> None:
        """Handle an outcome of the chain."""
        login = client.login
        assert isinstance(login, _Login)
        if isinstance(outcome, LoginRefused):
            self._refuse(client, outcome)
        elif isinstance(outcome, LoginPending):
            login.ticket = outcome.ticket
            self._wait(client, outcome)
        elif login.taken != self._taken:  # its checks may be outdated
            self._begin(client, login.credentials, login.go_on, again=True)
        else:
            self._admit(client, outcome, login)

    def _wait(self, client: ConnectingClient, waiting: LoginPending) -> None:
        ticket, job = waiting.ticket, waiting.job
        if isinstance(job, Challenge):
            assert client.authentication is not None
            login = client.login
            if isinstance(login, _Login) and login.again:  # its exchange is complete, and the client expects no other
                self._refuse(client, LoginRefused(ReasonCode.SERVER_BUSY, "rights were taken while it proved itself"))
                return
            self._loop.write(client.conn, encode_auth(client.authentication, job.data, ends=False))
            self._loop.resume(client.conn)
            return
        desk = self._queues.get(job.kind)
        if desk is None:
            self._resume(client, ticket, None)
            return
        displaced = desk.put(client.number, ticket)
        if displaced is None:
            return
        self._node.count(f"refused_login_queue_{job.kind}")
        found = client if displaced == client.number else self._client_of(displaced)
        if found is not None:
            self._refuse(found, LoginRefused(ReasonCode.SERVER_BUSY, f"too many wait for a job: {job.kind}"))

    def _admit(self, client: ConnectingClient, admitted: Admitted, login: _Login) -> None:
        principal, former = admitted.principal, client.principal
        if former is not None and (former.user, former.made) != (principal.user, principal.made):
            self._refuse(client, LoginRefused(ReasonCode.NOT_AUTHORIZED, "another user than before"))  # [MQTT-4.12.1-2]
            return
        if not principal.client_id:
            principal = replace(principal, client_id=client.client_id)
        if former is not None and principal.client_id != client.client_id:
            self._refuse(client, LoginRefused(ReasonCode.NOT_AUTHORIZED, "another client ID than before"))
            return
        if client.authentication is not None:
            client.authentication.final = principal.data
        client.client_id, client.principal = principal.client_id, principal
        self._ends.pop(client.number, None)
        if principal.expires_at_utc is not None:
            self._ends[client.number] = principal.expires_at_utc
            heapq.heappush(self._next_ends, (principal.expires_at_utc, client.number))
            self._check_at = 0.0
            self._node.wake()
            self._forget_former_ends()
        login.go_on(client)

    def _refuse(self, client: ConnectingClient, refused: LoginRefused, *, guessed: bool = True) -> None:
        login, client.login = client.login, None
        code = refused.code
        if code != ReasonCode.BAD_USER_NAME_OR_PASSWORD:  # a wrong proof of an exchange gets 0x87
            has_credentials = isinstance(login, _Login) and bool(login.credentials.method or login.credentials.password)
            guessed = guessed and has_credentials and code == ReasonCode.NOT_AUTHORIZED
        self._node.count(f"refused_login_{NAMES.get(code, 'other')}")
        say(logger, "login.refused", reason_code=code, why=refused.reason)
        user = login.credentials.user if isinstance(login, _Login) else None
        self._node.audit(refusal_record(client, code, refused.reason, user or ""))
        assert self._answers is not None
        self._answers.refused(client, code, guessed=guessed)

    # --- changes while a client waited

    def stands(self, client: ConnectingClient, go_on: GoOn) -> bool:
        """Return whether an accepted client may get its CONNACK now.

        Otherwise it is refused, or its chain runs again and ``go_on`` is called when it is accepted.
        """
        login, principal = client.login, client.principal
        if login is UNCHECKED:
            assert client.connect is not None
            if self._needs_no_check(client, client.connect):
                client.login = None
                return True
            self.begin(client, go_on)  # a new ban, or another chain
            return False
        assert isinstance(login, _Login) and principal is not None
        if login.taken != self._taken:
            self._begin(client, login.credentials, go_on, again=True)
            return False
        refused = self._chains.of(client.policy).look_again(login.credentials, principal, self.time_point)
        if refused is not None:
            self._refuse(client, refused)
            return False
        client.login = None
        return True

    @property
    def ends(self) -> int:
        """Number of stored expiries, including those of disconnected clients."""
        return len(self._next_ends)

    def permissions_removed(self) -> None:
        """Discard earlier results: a policy step removed permissions, or files of users were reloaded."""
        self._taken += 1
        self._chains.forget_answers()

    def end_those(self, is_gone: Callable[[ConnectingClient], bool]) -> None:
        """Run the chains of waiting logins again, and close live clients without permission: files were reloaded."""
        self.permissions_removed()
        self._sweep.begin(is_gone)
        self._node.wake()

    def give(self, client: ConnectingClient, principal: Principal) -> None:
        """Replace an open client's principal; a client that waits for CONNACK is checked again anyway."""
        assert self._answers is not None
        client.principal = principal
        self._answers.renewed(client)

    def end(self, client: ConnectingClient, reason: str) -> None:
        """End a client that is no longer permitted."""
        if client.principal is not None and not client.conn.closed:
            self._node.count("logins_ended")
            self._refuse(client, LoginRefused(ReasonCode.NOT_AUTHORIZED, f"let in no more: {reason}"), guessed=False)

    # --- the shells

    def done(self, number: int, ticket: Ticket, result: object) -> None:
        """Queue the result of a job; an object of another type than the job's is a failure."""
        self._results.append((number, ticket, result))
        self._node.wake()

    # --- a part of edge/access.py

    def step(self, now: float) -> None:
        """Handle queued results, and end clients with expired principals."""
        for _ in range(len(self._results)):
            number, ticket, result = self._results.popleft()
            client = self._client_of(number)
            login = client.login if client is not None else None
            if client is not None and isinstance(login, _Login) and login.ticket is ticket and not client.conn.closed:
                self._resume(client, ticket, result)
        if self._next_ends and now >= self._check_at:
            self._end_expired(now)
        self._sweep.step()

    def _end_expired(self, now: float) -> None:
        utc = self._utc()
        while self._next_ends and self._next_ends[0][0] <= utc:
            end, number = heapq.heappop(self._next_ends)
            client = self._client_of(number)
            if self._ends.get(number) == end and client is not None:
                del self._ends[number]
                assert self._answers is not None
                self._answers.expired(client)
        wait_s = self._next_ends[0][0] - utc if self._next_ends else CLOCK_CHECK_S
        self._check_at = now + min(CLOCK_CHECK_S, wait_s)

    def next_deadline(self) -> float:
        """Return when the clock is checked again, or when a sweep continues."""
        if self._sweep.busy:
            return 0.0
        return self._check_at if self._next_ends else float("inf")

    def closed(self, client: ConnectingClient, why: int) -> None:
        """Remove the login of a closed connection."""
        del why
        login, client.login = client.login, None
        if isinstance(login, _Login) and login.ticket is not None:
            desk = self._queues.get(login.ticket.job.kind)
            if desk is not None:
                desk.withdraw(client.number)
        if self._ends.pop(client.number, None) is not None:
            self._forget_former_ends()

    def _forget_former_ends(self) -> None:
        """Remove outdated heap entries: a client may re-authenticate any number of times."""
        if len(self._next_ends) > 2 * len(self._ends) + 64:
            self._next_ends = [(end, number) for number, end in self._ends.items()]
            heapq.heapify(self._next_ends)
