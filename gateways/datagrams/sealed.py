"""Sealed datagrams: a key per device, new keys per session, each datagram encrypted, replays dropped.

  OPEN    1, length of the name, name, nonce 16, cookie 16, proof 16   device to node, first with a cookie of zeros
  RETRY   4, cookie 16, proof 16                                       node to device: send OPEN with this cookie
  OPENED  2, session 8, nonce 16, proof 16                             node to device
  DATA    3, session 8, counter 8, AES-256-GCM of the packet           both ways, a key for each direction

A node creates a session only for an OPEN that the device's key has signed over a cookie of this address. A recorded
OPEN creates none: its cookie is of another address, time or process. Within the cookie's lifetime the node remembers
the nonces of each name: a repeated OPEN gets the same OPENED and creates no second session. An old session stays until
the new one has sent a datagram. The keys derive from both nonces: a device needs no stored counter. A session lasts 24
h or 2**31 datagrams. It survives a change of its address: the node requests a cookie from the new one. A packet grows
by 33 bytes.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateways.datagrams.messages import Endpoint
from gateways.datagrams.proofs import COOKIE_BYTES, PERIOD_S, Proofs
from gateways.datagrams.subscribers import DatagramPeer

__all__ = ["SEALED_BYTES", "SealedPort"]

OPEN, OPENED, DATA, RETRY = 1, 2, 3, 4
NONCE = PROOF = 16
HEAD = 17  # of DATA: kind, session, counter
SEALED_BYTES = HEAD + 16  # overhead of a packet
ZEROS = bytes(4)  # nonce prefix, before the counter
NAME_BYTES_MAX = 64
REPLAY_WINDOW = 1_024
WINDOW = (1 << REPLAY_WINDOW) - 1
SESSION_S_MAX = 86_400.0
DATAGRAMS_MAX = 1 << 31
PER_NAME_MAX = 4  # sessions of one device: a new one ends the oldest
COOKIE_PERIODS = 2  # a cookie of OPEN is valid for one to two minutes
NONCE_S = COOKIE_PERIODS * PERIOD_S  # an OPEN older than that has no valid cookie
NONCES_PER_NAME_MAX = 64  # a device that opens more sessions in NONCE_S gets no answer
QUEUED_MAX = 64  # packets queued for OPENED
REOPEN_S = 1.0
TRIES_PER_NONCE = 5  # then OPEN gets a new nonce: the node may have ended the first session
SILENCE_S = 3.0  # after which a device assumes that the node has lost its session


class _Session:
    """One session: the keys, the counter, and the replay window."""

    __slots__ = (
        "_head",
        "_mask",
        "_open",
        "_seal",
        "_sent",
        "_top",
        "began",
        "endpoint",
        "is_confirmed",
        "name",
        "number",
        "peer",
    )

    def __init__(self, number: int, name: str, endpoint: Endpoint, keys: tuple[bytes, bytes], now: float) -> None:
        self.number, self.name, self.endpoint, self.began = number, name, endpoint, now
        self.is_confirmed = False
        self.peer = DatagramPeer(endpoint, number)  # its last address
        self._seal, self._open = AESGCM(keys[0]).encrypt, AESGCM(keys[1]).decrypt
        self._head = bytes((DATA,)) + number.to_bytes(8, "big")
        self._sent, self._top, self._mask = 0, 0, 0

    def has_expired(self, now: float) -> bool:
        return now - self.began > SESSION_S_MAX or self._sent >= DATAGRAMS_MAX

    def seal(self, data: bytes) -> bytes:
        self._sent += 1
        counter = self._sent.to_bytes(8, "big")
        head = self._head + counter
        return head + self._seal(ZEROS + counter, data, head)

    def open(self, datagram: bytes) -> bytes | None:
        """Return the packet; None for a forged datagram, and for a replay."""
        head = datagram[:HEAD]
        written = head[9:]
        counter = int.from_bytes(written, "big")
        back = self._top - counter
        if not 0 < counter <= DATAGRAMS_MAX or back >= REPLAY_WINDOW or (back >= 0 and self._mask >> back & 1):
            return None
        try:
            data = self._open(ZEROS + written, datagram[HEAD:], head)
        except InvalidTag:
            return None
        if back < 0:
            # A key owner may skip counters up to the last: an unbounded shift would need 256 MB.
            self._mask = (self._mask << -back | 1) & WINDOW if back > -REPLAY_WINDOW else 1
            self._top = counter
        else:
            self._mask |= 1 << back
        return data


class _Opening:
    """An OPEN in progress, and the packets queued for its answer."""

    def __init__(self) -> None:
        self.nonce = secrets.token_bytes(NONCE)
        self.cookie = bytes(COOKIE_BYTES)
        self.tries = 0  # with this nonce
        self.due = 0.0
        self.waiting: list[bytes] = []


class _Answered:
    """A nonce of a device, and the answer to it; the session may have ended since."""

    __slots__ = ("at", "name", "opened", "session")

    def __init__(self, at: float, session: _Session, opened: bytes) -> None:
        self.at, self.name, self.session, self.opened = at, session.name, session.number, opened


class SealedPort:
    """Both ends of sealed sessions at one socket.

    Attributes:
      replies: Datagrams of the handshake to send now; the shell empties it.
      counts: Dropped datagrams, by reason, and opened sessions.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes],
        name: str = "",
        key: bytes = b"",
        *,
        only: Endpoint | None = None,
        sessions_max: int = 100_000,
    ) -> None:
        """Set up.

        Args:
          keys: 32 bytes by name, of devices and nodes that may open sessions here.
          name: Name with which this end opens sessions.
          key: Its own, 32 bytes.
          only: The only destination of outgoing sessions; None: all.
          sessions_max: Above it the oldest session is removed.
        """
        self.replies: list[tuple[Endpoint, bytes]] = []
        self.counts: Counter[str] = Counter()
        self._keys, self._name, self._key, self._max = keys, name.encode(), key, sessions_max
        self._only = only
        self._proofs = Proofs(secrets.token_bytes(32), COOKIE_PERIODS)
        self._nonces: OrderedDict[tuple[str, bytes], _Answered] = OrderedDict()  # by name and nonce, oldest first
        self._recent: Counter[str] = Counter()  # number of nonces by name
        self._sessions: dict[int, _Session] = {}  # incoming sessions, oldest first
        self._by_name: dict[str, list[_Session]] = {}
        self._by_endpoint: dict[Endpoint, _Session] = {}
        self._own: dict[Endpoint, _Session] = {}  # outgoing sessions
        # of outgoing sessions: time of the first packet since the last received one
        self._unanswered: dict[Endpoint, float] = {}
        self._opening: dict[Endpoint, _Opening] = {}

    @property
    def sessions(self) -> int:
        """Return the number of incoming sessions."""
        return len(self._sessions)

    def receive(self, now: float, endpoint: Endpoint, datagram: bytes) -> tuple[DatagramPeer, str, bool, bytes] | None:
        """Handle a datagram.

        Returns:
          The peer, its verified name, whether this address is proved, and the packet; None for a handshake and for an
          invalid datagram.
        """
        kind = datagram[0] if datagram else 0
        if kind == DATA and len(datagram) >= SEALED_BYTES:
            return self._receive_data(now, endpoint, datagram)
        if kind == OPEN:
            self._open(now, endpoint, datagram)
        elif kind == OPENED:
            self._opened(now, endpoint, datagram)
        elif kind == RETRY:
            self._retry(now, endpoint, datagram)
        else:
            self.counts["sealed_unknown"] += 1
        return None

    def send(self, now: float, peer: DatagramPeer, data: bytes, is_answer: bool = False) -> bytes | None:
        """Seal a packet; None if there is no session, or the packet is queued for a new one.

        Args:
          is_answer: No reply is expected, so that silence does not indicate a lost session.
        """
        session = self._sessions.get(peer.session) if peer.session else self._by_endpoint.get(peer.endpoint)
        if session is not None:
            return None if session.has_expired(now) else session.seal(data)
        own = self._own.get(peer.endpoint)
        if own is not None and not own.has_expired(now) and (is_answer or self._record_sent(now, peer.endpoint)):
            return own.seal(data)
        if self._key and not peer.session and self._only in (None, peer.endpoint):
            opening = self._opening.setdefault(peer.endpoint, _Opening())
            if len(opening.waiting) < QUEUED_MAX:
                opening.waiting.append(data)
            self._send_open(now, peer.endpoint, opening)
        return None

    def set_keys(self, keys: Mapping[str, bytes]) -> None:
        """Replace the keys; sessions with removed or changed keys end."""
        for name in [name for name, key in self._keys.items() if keys.get(name) != key]:
            for session in list(self._by_name.get(name, ())):
                self._end(session)
            for nonce in [each for each in self._nonces if each[0] == name]:
                self._forget(nonce)
        self._keys = keys

    def prove(self, peer: DatagramPeer) -> None:
        """Accept a session's new address."""
        session = self._sessions.get(peer.session)
        if session is not None:
            self._by_endpoint.pop(session.endpoint, None)
            session.endpoint = peer.endpoint
            self._by_endpoint[peer.endpoint] = session

    def _receive_data(
        self, now: float, endpoint: Endpoint, datagram: bytes
    ) -> tuple[DatagramPeer, str, bool, bytes] | None:
        number = int.from_bytes(datagram[1:9], "big")
        own = self._own.get(endpoint)
        if own is not None and own.number == number:
            data = own.open(datagram)
            if data is not None:
                self._unanswered.pop(endpoint, None)
                return DatagramPeer(endpoint), own.name, True, data
        session = self._sessions.get(number)
        data = session.open(datagram) if session is not None and not session.has_expired(now) else None
        if session is None or data is None:
            self.counts["sealed_no_session" if session is None else "sealed_not_valid"] += 1
            return None
        if not session.is_confirmed:
            session.is_confirmed = True
            session.endpoint = endpoint
            self._by_endpoint[endpoint] = session
        if session.peer.endpoint != endpoint:
            session.peer = DatagramPeer(endpoint, number)
        return session.peer, session.name, endpoint == session.endpoint, data

    def _open(self, now: float, endpoint: Endpoint, datagram: bytes) -> None:
        length = datagram[1] if len(datagram) > 1 else 0
        name, rest = datagram[2 : 2 + length], datagram[2 + length :]
        try:
            text = name.decode()
        except UnicodeDecodeError:
            text = ""
        key = self._keys.get(text, b"") if text else b""
        nonce, cookie, proof = rest[:NONCE], rest[NONCE : NONCE + COOKIE_BYTES], rest[NONCE + COOKIE_BYTES :]
        wanted = _proof(key or bytes(32), b"open", name, nonce, cookie)
        if not (hmac.compare_digest(wanted, proof) and key and len(cookie) == COOKIE_BYTES):
            self.counts["open_not_valid"] += 1
            return
        if not self._proofs.is_valid(endpoint, cookie, now):
            self.counts["open_without_cookie"] += 1
            cookie = self._proofs.cookie(endpoint, now)
            self.replies.append((endpoint, bytes((RETRY,)) + cookie + _proof(key, b"retry", nonce, cookie)))
            return
        self._remove_old_nonces(now)
        known = self._nonces.get((text, nonce))
        if known is not None:
            self.counts["open_repeated"] += 1
            if known.session in self._sessions:
                self.replies.append((endpoint, known.opened))
            return
        if self._recent[text] >= NONCES_PER_NAME_MAX:
            self.counts["open_too_often"] += 1
            return
        self._create(now, endpoint, text, key, nonce)

    def _create(self, now: float, endpoint: Endpoint, name: str, key: bytes, nonce: bytes) -> None:
        mine, number = secrets.token_bytes(NONCE), secrets.randbits(63) + 1
        to_node, to_device = _keys(key, nonce + mine)
        session = _Session(number, name, endpoint, (to_device, to_node), now)
        self._add_session(session)
        head = number.to_bytes(8, "big") + mine
        opened = bytes((OPENED,)) + head + _proof(key, b"opened", nonce, head)
        self._nonces[name, nonce] = _Answered(now, session, opened)
        self._recent[name] += 1
        self.counts["sessions_opened"] += 1
        self.replies.append((endpoint, opened))

    def _remove_old_nonces(self, now: float) -> None:
        """Remove nonces whose OPEN cookie has expired."""
        while self._nonces:
            nonce, oldest = next(iter(self._nonces.items()))
            if now - oldest.at <= NONCE_S:
                return
            self._forget(nonce)

    def _forget(self, nonce: tuple[str, bytes]) -> None:
        name = self._nonces.pop(nonce).name
        self._recent[name] -= 1
        if not self._recent[name]:
            del self._recent[name]

    def _add_session(self, session: _Session) -> None:
        self._sessions[session.number] = session
        mine = self._by_name.setdefault(session.name, [])
        mine.append(session)
        if len(mine) > PER_NAME_MAX:
            # A device that lost OPENED never sends in that session: unconfirmed sessions end first.
            self._end(next((each for each in mine[:-1] if not each.is_confirmed), mine[0]))
        while len(self._sessions) > self._max:
            self._end(next(iter(self._sessions.values())))

    def _end(self, session: _Session) -> None:
        del self._sessions[session.number]
        mine = self._by_name[session.name]
        mine.remove(session)
        if not mine:
            del self._by_name[session.name]
        if self._by_endpoint.get(session.endpoint) is session:
            del self._by_endpoint[session.endpoint]

    def _opened(self, now: float, endpoint: Endpoint, datagram: bytes) -> None:
        opening = self._opening.get(endpoint)
        head, proof = datagram[1:25], datagram[25:]
        if opening is None or not hmac.compare_digest(_proof(self._key, b"opened", opening.nonce, head), proof):
            self.counts["opened_not_valid"] += 1
            return
        del self._opening[endpoint]
        number = int.from_bytes(head[:8], "big")
        self._own[endpoint] = session = _Session(number, "", endpoint, _keys(self._key, opening.nonce + head[8:]), now)
        self._unanswered.pop(endpoint, None)
        self.replies += [(endpoint, session.seal(data)) for data in opening.waiting]

    def _record_sent(self, now: float, endpoint: Endpoint) -> bool:
        """Record a sent packet; False after a silence that indicates a lost session."""
        first = self._unanswered.get(endpoint, 0.0)
        if not first:
            self._unanswered[endpoint] = now
        return not first or now - first <= SILENCE_S

    def _retry(self, now: float, endpoint: Endpoint, datagram: bytes) -> None:
        """Send OPEN with the node's cookie; one already sent is not sent again before it is due."""
        opening = self._opening.get(endpoint)
        cookie, proof = datagram[1 : 1 + COOKIE_BYTES], datagram[1 + COOKIE_BYTES :]
        if opening is None or not hmac.compare_digest(_proof(self._key, b"retry", opening.nonce, cookie), proof):
            self.counts["retry_not_valid"] += 1
        elif cookie != opening.cookie:
            opening.cookie, opening.due = cookie, now
            self._send_open(now, endpoint, opening)

    def _send_open(self, now: float, endpoint: Endpoint, opening: _Opening) -> None:
        if opening.due <= now:
            if opening.tries >= TRIES_PER_NONCE:
                opening.nonce, opening.tries = secrets.token_bytes(NONCE), 0
            opening.due, opening.tries = now + REOPEN_S, opening.tries + 1
            name = bytes((len(self._name),)) + self._name
            proof = _proof(self._key, b"open", self._name, opening.nonce, opening.cookie)
            self.replies.append((endpoint, bytes((OPEN,)) + name + opening.nonce + opening.cookie + proof))


def _proof(key: bytes, *parts: bytes) -> bytes:
    text = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    return hmac.digest(key, text, "sha256")[:PROOF]


def _keys(key: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """Return the keys of a session: device to node, node to device."""
    both = HKDF(algorithm=SHA256(), length=64, salt=nonces, info=b"stratamq udp 1").derive(key)
    return both[:32], both[32:]
