"""Datagrams over DTLS 1.2 with certificates at both ends, by trio's endpoint; same interface as ``DatagramSocket``.

A device's name is the only CN of its certificate. A node's certificate must contain its IP address, which is all that a
device knows; otherwise each device could impersonate a node. The handshake's cookie proves the address. A session ends
when the address changes, when the certificate expires, or after 24 h.
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

DTLS_BYTES = 37  # overhead of a packet: record header 13, nonce 8, tag 16
HANDSHAKE_S = 20.0
FLUSH_S = 1.0
ARRIVED_MAX = 4_096  # packets queued for the node
FILE_BYTES_MAX = 1024 * 1024
DTLS_1_2 = 0xFEFD
CIPHERS = b"ECDHE+AESGCM:ECDHE+CHACHA20"

# Peer certificate of this task's handshake
_peer_certificates: ContextVar[list[bytes]] = ContextVar("_peer_certificates")


class DtlsFiles:
    """A certificate, its key, and the CA of peers.

    Attributes:
      error: OpenSSL's exception type.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        """Read the files once.

        Raises:
          AccessFileError: A file is unusable, or the key does not match.
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
        except (SSL.Error, ValueError, TypeError, UnsupportedAlgorithm):  # depends on the damage
            raise AccessFileError(key, 0, f"is not the private key of {certificate}") from None

    def context(self) -> Any:
        """Return a new context of OpenSSL: a context cannot serve both roles."""
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
        raise AccessFileError(path, 0, "is not a PEM certificate") from None


def _verified(connection: Any, certificate: Any, error: int, depth: int, is_ok: int) -> bool:
    """Store the peer's certificate; called within the handshake, in the task that waits for it."""
    del connection, error
    if depth == 0 and is_ok:
        _peer_certificates.get().append(certificate.to_cryptography().public_bytes(Encoding.DER))
    return bool(is_ok)


class _PeerIdentity(NamedTuple):
    """A peer's name, and the remaining validity of its certificate."""

    name: str
    valid_s: float


class _Session:
    """One session with its send queue."""

    def __init__(self) -> None:
        self.give, self.take = trio.open_memory_channel[bytes](QUEUED_MAX)
        self.scope = trio.CancelScope()
        self.unanswered = 0.0  # time of the first packet since the last received one


class DtlsSocket:
    """One UDP socket and its DTLS sessions.

    Attributes:
      endpoint: The socket's own address.
      counts: Packets in and out, handshakes, and drops by reason.
      known: Addresses of authenticated devices.
      handshakes: Admission of incoming handshakes.
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
          serves: Accept sessions.
          opens: Open sessions to destinations.
          only: The only permitted destination.
        """
        self.counts: Counter[str] = Counter()
        self.endpoint = _endpoint(bound.getsockname())
        self._dtls = trio.DTLSEndpoint(trio.socket.from_stdlib_socket(bound), incoming_packets_buffer=QUEUED_MAX)
        self._files, self._serves, self._opens, self._only = files, serves, opens, only
        self._max = sessions_max
        self._sessions: dict[int, _Session] = {}  # incoming sessions, oldest first
        self._by_endpoint: dict[Endpoint, _Session] = {}
        self._own: dict[Endpoint, _Session] = {}  # outgoing sessions
        self._numbers = itertools.count(1)
        self.known = KnownAddresses()
        self.handshakes: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["dtls_handshakes"], self.known.knows)
        self._arrived: list[tuple[DatagramPeer, str, bytes]] = []
        self._has_arrived = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve sessions until cancelled."""
        async with trio.open_nursery() as self._nursery:
            if self._serves:
                await self._nursery.start(self._dtls.serve, self._files.context(), self._serve)
            task_status.started()
            await trio.sleep_forever()

    async def flush(self) -> None:
        """Wait until queued packets are sent, at most one second."""
        with trio.move_on_after(FLUSH_S):
            while any(map(_has_pending, [*self._sessions.values(), *self._own.values()])):
                await trio.sleep(0.005)

    def close(self) -> None:
        """Close the socket."""
        self._dtls.close()

    def prove(self, peer: DatagramPeer) -> None:
        """No effect: a session has one address, proved by its handshake."""

    async def readable(self) -> None:
        """Wait for a packet."""
        if not self._arrived:
            self._has_arrived = trio.Event()
            await self._has_arrived.wait()

    def read(self, now: float, received: DatagramReceiver) -> bool:
        """Pass up to BATCH received packets on; return whether there are more."""
        del now
        arrived, self._arrived = self._arrived[:BATCH], self._arrived[BATCH:]
        for peer, name, data in arrived:
            packet = read_packet(data, DATAGRAM_BYTES_MAX - DTLS_BYTES, self.counts)
            if packet is not None:
                received(peer, name, True, packet, len(data) + DTLS_BYTES)
        return bool(self._arrived)

    def send(self, now: float, sent: Sent) -> None:
        """Send a packet, if its size and session permit."""
        data, peer = encode(sent.packet), sent.peer
        if len(data) + DTLS_BYTES > DATAGRAM_BYTES_MAX:
            self.counts["too_large"] += 1
            return
        session = self._sessions.get(peer.session) if peer.session else self._by_endpoint.get(peer.endpoint)
        if session is None and self._opens and not peer.session and self._only in (None, peer.endpoint):
            session = self._get_session(now, peer.endpoint, isinstance(sent.packet.body, PubAck))
        if session is None:
            self.counts["no_session"] += 1
            return
        try:
            session.give.send_nowait(data)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self.counts["socket_full"] += 1

    def _get_session(self, now: float, endpoint: Endpoint, is_answer: bool) -> _Session | None:
        """Return the session with a node; a silent one is replaced."""
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
            identity = await self._do_handshake(channel, lambda der: _identify_node(der, endpoint))
            if identity is not None:
                session.unanswered = 0.0
                await self._relay_packets(channel, session, DatagramPeer(endpoint), identity)
        if self._own.get(endpoint) is session:
            del self._own[endpoint]

    async def _serve(self, channel: trio.DTLSChannel) -> None:
        endpoint = _endpoint(channel.peer_address)
        address = str(ipaddress.ip_address(endpoint.ip))
        try:
            with place_for(self.handshakes, trio.current_time(), address) as place:
                place.heard()  # a ClientHello with a valid cookie was received
                identity = await self._do_handshake(channel, _identify_device)
        except NotAdmitted:
            self.counts["handshakes_full"] += 1
            return
        if identity is None:
            return
        self.known.add(identity.name, address, trio.current_time())
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
                await self._relay_packets(channel, session, DatagramPeer(endpoint, number), identity)
        finally:
            del self._sessions[number]
            if self._by_endpoint.get(endpoint) is session:
                del self._by_endpoint[endpoint]

    async def _do_handshake(
        self, channel: trio.DTLSChannel, identify: Callable[[bytes], _PeerIdentity]
    ) -> _PeerIdentity | None:
        """Return the peer's identity; None, counted, if it has no valid certificate."""
        channel.set_ciphertext_mtu(DATAGRAM_BYTES_MAX)
        certificates: list[bytes] = []
        _peer_certificates.set(certificates)
        with trio.move_on_after(HANDSHAKE_S):
            try:
                await channel.do_handshake()
            except Exception:  # errors of OpenSSL or certificate parsing, caused by a peer's bytes
                self.counts["handshakes_failed"] += 1
                return None
            try:
                identity = identify(certificates[-1])
            except Exception:  # the library documents no list; the bytes come from a peer
                self.counts["handshakes_refused"] += 1
                return None
            self.counts["handshakes"] += 1
            return identity
        self.counts["handshakes_failed"] += 1
        return None

    async def _relay_packets(
        self, channel: trio.DTLSChannel, session: _Session, peer: DatagramPeer, identity: _PeerIdentity
    ) -> None:
        """Move packets both ways until the session ends."""
        with trio.move_on_after(min(SESSION_S_MAX, identity.valid_s)):
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
                        self._arrived.append((peer, identity.name, data))
                        self._has_arrived.set()
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


def _has_pending(session: _Session) -> bool:
    """Return whether a packet is queued or being sent."""
    waiting = session.take.statistics()
    return bool(waiting.current_buffer_used) or not waiting.tasks_waiting_receive


def _endpoint(address: Any) -> Endpoint:
    host, port = address[:2]
    return Endpoint(ipaddress.ip_address(host.partition("%")[0]).packed, port)


def _identify_device(der: bytes) -> _PeerIdentity:
    facts = certificate_facts(der, (), ocsp=False)
    names = facts.names.get(NameKind.CN, ())
    if facts.of_cluster or len(names) != 1 or name_fault(names[0]):
        raise ValueError("the certificate must have exactly one name")
    return _PeerIdentity(names[0], (facts.expires_at_utc or 0.0) - time.time())


def _identify_node(der: bytes, endpoint: Endpoint) -> _PeerIdentity:
    certificate = x509.load_der_x509_certificate(der)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if ipaddress.ip_address(endpoint.ip) not in found.get_values_for_type(x509.IPAddress):
        raise ValueError(f"the certificate does not contain the address {endpoint}")
    return _PeerIdentity("", certificate.not_valid_after_utc.timestamp() - time.time())
