"""Datagrams over DTLS 1.2: a certificate at both ends, by trio's endpoint; the same doors as ``DatagramSocket``.

A device is named by the one CN of its certificate. A node's certificate must name its IP address: it is all that a
device knows of it, and without that each device could pass for a node. A session has proved its address by the cookie
of its handshake, and ends when the address changes, when the certificate ends, or after 24 h.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from access.files import AccessFileError, read_access_file
from access.identity.certificates import NameKind, certificate_facts
from access.identity.principal import name_fault
from conf.admission import POOLS, AdmissionPool, KnownAddresses
from conf.admitted import NotAdmitted, place_for
from gateways.datagrams.messages import DATAGRAM_BYTES_MAX, Endpoint, PubAck, encode
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sealed import QUEUED_MAX, SESSION_S_MAX, SILENCE_S
from gateways.datagrams.sockets import BATCH, DatagramReceiver, read_packet
from gateways.datagrams.subscribers import DatagramPeer

__all__ = ["DTLS_BYTES", "DtlsFiles", "DtlsSocket"]

DTLS_BYTES = 37  # added to a packet: record head 13, nonce 8, tag 16
HANDSHAKE_S = 20.0
FLUSH_S = 1.0
ARRIVED_MAX = 4_096  # packets that wait for the node
FILE_BYTES_MAX = 1024 * 1024
DTLS_1_2 = 0xFEFD
CIPHERS = b"ECDHE+AESGCM:ECDHE+CHACHA20"

_seen: ContextVar[list[bytes]] = ContextVar("_seen")  # partner's certificate of the handshake of this task


class DtlsFiles:
    """A certificate, its key, and who signs partners.

    Attributes:
        error: What OpenSSL raises.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        """Read them; they are not read again.

        Raises:
            AccessFileError: One is unusable, or the key is of another certificate.
            ValueError: pyOpenSSL is not installed.
        """
        try:
            from OpenSSL import SSL, crypto
        except ImportError:
            raise ValueError("security = dtls needs the package pyOpenSSL: pip install 'stratamq[udp]'") from None
        self._ssl: Any = SSL
        self._x509: Any = crypto.X509
        self.error: type[Exception] = SSL.Error
        self._chain = _certificates(certificate)
        self._authorities = _certificates(authority)
        private = read_access_file(key, FILE_BYTES_MAX, secret=True)
        try:
            self._key: Any = load_pem_private_key(private, None)
            self.context()
        except (SSL.Error, ValueError, TypeError, UnsupportedAlgorithm):  # which of them depends on the damage
            raise AccessFileError(key, 0, f"is no private key of {certificate}") from None

    def context(self) -> Any:
        """Return a new context of OpenSSL: one that made a connection can be used for no other end."""
        ssl = self._ssl
        context = ssl.Context(ssl.DTLS_METHOD)
        context.use_certificate(self._chain[0])
        for each in self._chain[1:]:
            context.add_extra_chain_cert(each)
        context.use_privatekey(self._key)
        context.check_privatekey()
        for each in self._authorities:
            context.get_cert_store().add_cert(self._x509.from_cryptography(each))
        context.set_min_proto_version(DTLS_1_2)
        context.set_cipher_list(CIPHERS)
        context.set_session_cache_mode(ssl.SESS_CACHE_OFF)
        context.set_options(ssl.OP_NO_TICKET)
        context.set_verify(ssl.VERIFY_PEER | ssl.VERIFY_FAIL_IF_NO_PEER_CERT, _verified)
        return context


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(read_access_file(path, FILE_BYTES_MAX))
    except ValueError:
        raise AccessFileError(path, 0, "is no certificate in PEM") from None


def _verified(connection: Any, certificate: Any, error: int, depth: int, is_ok: int) -> bool:
    """Note the partner's certificate: this is called within the handshake, by the task that waits for it."""
    del connection, error
    if depth == 0 and is_ok:
        _seen.get().append(certificate.to_cryptography().public_bytes(Encoding.DER))
    return bool(is_ok)


class _Shown(NamedTuple):
    """A partner: its name, and how long its certificate says so."""

    name: str
    valid_s: float


class _Session:
    """One session: where its packets wait to be sent."""

    def __init__(self) -> None:
        self.give, self.take = trio.open_memory_channel[bytes](QUEUED_MAX)
        self.scope = trio.CancelScope()
        self.unanswered = 0.0  # when the first was sent that nothing came after


class DtlsSocket:
    """One UDP socket and its DTLS sessions.

    Attributes:
        endpoint: The socket's own address.
        counts: Packets in and out, handshakes, and what was dropped, by reason.
        known: Addresses of devices that authenticated here.
        handshakes: Their places, of sessions that others open here.
    """

    def __init__(
        self,
        bound: socket.socket,
        files: DtlsFiles,
        *,
        serves: bool = True,
        only: Endpoint | None = None,
        opens: bool = False,
        sessions_max: int = 100_000,
    ) -> None:
        """Set up.

        Args:
            serves: Others may open sessions here.
            opens: This end opens sessions with those it sends to.
            only: With this one alone.
        """
        self.counts: Counter[str] = Counter()
        self.endpoint = _endpoint(bound.getsockname())
        self._dtls = trio.DTLSEndpoint(trio.socket.from_stdlib_socket(bound), incoming_packets_buffer=QUEUED_MAX)
        self._files, self._serves, self._opens, self._only = files, serves, opens, only
        self._max = sessions_max
        self._sessions: dict[int, _Session] = {}  # that others opened here, oldest first
        self._by_endpoint: dict[Endpoint, _Session] = {}
        self._own: dict[Endpoint, _Session] = {}  # that this end opened
        self._numbers = itertools.count(1)
        self.known = KnownAddresses()
        self.handshakes: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["dtls_handshakes"], self.known.knows)
        self._arrived: list[tuple[DatagramPeer, str, bytes]] = []
        self._stirred = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve sessions, for ever."""
        async with trio.open_nursery() as self._nursery:
            if self._serves:
                await self._nursery.start(self._dtls.serve, self._files.context(), self._serve)
            task_status.started()
            await trio.sleep_forever()

    async def flush(self) -> None:
        """Wait until what was given to sessions has left, a second at most."""
        with trio.move_on_after(FLUSH_S):
            while any(map(_has_more, [*self._sessions.values(), *self._own.values()])):
                await trio.sleep(0.005)

    def close(self) -> None:
        """Close the socket."""
        self._dtls.close()

    def prove(self, peer: DatagramPeer) -> None:
        """Do nothing: a session has one address, which its handshake has proved."""

    async def readable(self) -> None:
        """Wait until a packet is there."""
        if not self._arrived:
            self._stirred = trio.Event()
            await self._stirred.wait()

    def read(self, now: float, received: DatagramReceiver) -> bool:
        """Hand on up to BATCH packets that came; return whether there are more."""
        del now
        arrived, self._arrived = self._arrived[:BATCH], self._arrived[BATCH:]
        for peer, name, data in arrived:
            packet = read_packet(data, DATAGRAM_BYTES_MAX - DTLS_BYTES, self.counts)
            if packet is not None:
                received(peer, name, True, packet, len(data) + DTLS_BYTES)
        return bool(self._arrived)

    def send(self, now: float, sent: Sent) -> None:
        """Send a packet, if it may be sent."""
        data, peer = encode(sent.packet), sent.peer
        if len(data) + DTLS_BYTES > DATAGRAM_BYTES_MAX:
            self.counts["too_large"] += 1
            return
        session = self._sessions.get(peer.session) if peer.session else self._by_endpoint.get(peer.endpoint)
        if session is None and self._opens and not peer.session and self._only in (None, peer.endpoint):
            session = self._opened(now, peer.endpoint, isinstance(sent.packet.body, PubAck))
        if session is None:
            self.counts["no_session"] += 1
            return
        try:
            session.give.send_nowait(data)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self.counts["socket_full"] += 1

    def _opened(self, now: float, endpoint: Endpoint, is_answer: bool) -> _Session | None:
        """Return the session with a node, a new one if there is none or nothing comes for what was asked in it."""
        session = self._own.get(endpoint)
        if session is not None:
            if not is_answer:
                session.unanswered = session.unanswered or now
            if is_answer or now - session.unanswered <= SILENCE_S:
                return session
            session.scope.cancel()
        if self._nursery is None:
            return None
        session = self._own[endpoint] = _Session()
        session.unanswered = now + HANDSHAKE_S
        self._nursery.start_soon(self._open, endpoint, session)
        return session

    async def _open(self, endpoint: Endpoint, session: _Session) -> None:
        host, port = str(ipaddress.ip_address(endpoint.ip)), endpoint.port
        with session.scope, self._dtls.connect((host, port), self._files.context()) as channel:
            shown = await self._shake(channel, lambda der: _node(der, endpoint))
            if shown is not None:
                session.unanswered = 0.0
                await self._carry(channel, session, DatagramPeer(endpoint), shown)
        if self._own.get(endpoint) is session:
            del self._own[endpoint]

    async def _serve(self, channel: trio.DTLSChannel) -> None:
        endpoint = _endpoint(channel.peer_address)
        address = str(ipaddress.ip_address(endpoint.ip))
        try:
            with place_for(self.handshakes, trio.current_time(), address) as place:
                place.heard()  # its ClientHello came, with the cookie that its address got
                shown = await self._shake(channel, _device)
        except NotAdmitted:
            self.counts["handshakes_full"] += 1
            return
        if shown is None:
            return
        self.known.add(shown.name, address, trio.current_time())
        session, number = _Session(), next(self._numbers)
        self._sessions[number] = session
        former = self._by_endpoint.get(endpoint)
        self._by_endpoint[endpoint] = session
        if former is not None:
            former.scope.cancel()
        if len(self._sessions) > self._max:
            next(iter(self._sessions.values())).scope.cancel()
        try:
            with session.scope:
                await self._carry(channel, session, DatagramPeer(endpoint, number), shown)
        finally:
            del self._sessions[number]
            if self._by_endpoint.get(endpoint) is session:
                del self._by_endpoint[endpoint]

    async def _shake(self, channel: trio.DTLSChannel, look: Callable[[bytes], _Shown]) -> _Shown | None:
        """Return who the partner is; None, counted, if it cannot show it."""
        channel.set_ciphertext_mtu(DATAGRAM_BYTES_MAX)
        seen: list[bytes] = []
        _seen.set(seen)
        with trio.move_on_after(HANDSHAKE_S):
            try:
                await channel.do_handshake()
            except Exception:  # whatever OpenSSL, or the look at a certificate within it, makes of a partner's bytes
                self.counts["handshakes_failed"] += 1
                return None
            try:
                shown = look(seen[-1])
            except Exception:  # the library documents no list; the bytes are a partner's
                self.counts["handshakes_refused"] += 1
                return None
            self.counts["handshakes"] += 1
            return shown
        self.counts["handshakes_failed"] += 1
        return None

    async def _carry(self, channel: trio.DTLSChannel, session: _Session, peer: DatagramPeer, shown: _Shown) -> None:
        """Carry packets both ways until the session ends."""
        with trio.move_on_after(min(SESSION_S_MAX, shown.valid_s)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, channel, session)
                try:
                    while True:
                        data = await channel.receive()
                        session.unanswered = 0.0
                        self.counts["in"] += 1
                        if len(self._arrived) >= ARRIVED_MAX:
                            self.counts["socket_full"] += 1
                            continue
                        self._arrived.append((peer, shown.name, data))
                        self._stirred.set()
                except (self._files.error, trio.BrokenResourceError, trio.ClosedResourceError):
                    nursery.cancel_scope.cancel()

    async def _write(self, channel: trio.DTLSChannel, session: _Session) -> None:
        async for data in session.take:
            try:
                await channel.send(data)
                self.counts["out"] += 1
            except OSError:
                self.counts["unreachable"] += 1
            except (self._files.error, trio.BrokenResourceError, trio.ClosedResourceError):
                return


def _has_more(session: _Session) -> bool:
    """Return whether a packet waits, or is on its way to the socket."""
    waiting = session.take.statistics()
    return bool(waiting.current_buffer_used) or not waiting.tasks_waiting_receive


def _endpoint(address: Any) -> Endpoint:
    host, port = address[:2]
    return Endpoint(ipaddress.ip_address(host.partition("%")[0]).packed, port)


def _device(der: bytes) -> _Shown:
    facts = certificate_facts(der, (), ocsp=False)
    names = facts.names.get(NameKind.CN, ())
    if facts.of_cluster or len(names) != 1 or name_fault(names[0]):
        raise ValueError("a certificate without one name")
    return _Shown(names[0], (facts.expires_at_utc or 0.0) - time.time())


def _node(der: bytes, endpoint: Endpoint) -> _Shown:
    certificate = x509.load_der_x509_certificate(der)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if ipaddress.ip_address(endpoint.ip) not in found.get_values_for_type(x509.IPAddress):
        raise ValueError(f"a certificate that does not name {endpoint}")
    return _Shown("", certificate.not_valid_after_utc.timestamp() - time.time())
