"""Both sides of a TCP exchange on streams: lengths, bounds and time limits.

``exchange.py`` defines the proofs. Every step has the profile's time limit, every frame a length limit (a small one
until the peer has proven the key). The number of concurrent peers is bounded, separately for peers before and after
their proof.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from conf.admission import POOLS, AdmissionPool, AdmissionSlot, KnownAddresses
from membership.envelope import Envelope
from membership.exchange import (
    CHALLENGE_BYTES,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    LENGTH_BYTES,
    BadExchange,
    ExchangeHello,
    ExchangeSeal,
    Purpose,
    open_hello,
    seal_hello,
)
from membership.keyring import KeyExhausted
from membership.packets import Address
from wire.links.connection import address_of

__all__ = ["ExchangeFailure", "StateExchangeStreams"]

RECEIVE_BYTES = 65536
UNPROVEN_TIMEOUT_S = 2.0  # for the hello: bounds the slot of an unproven peer


class ExchangeFailure(Exception):
    """An exchange failed; the text names the step and never includes a peer's bytes."""


@contextmanager
def _step(name: str, timeout_s: float) -> Iterator[None]:
    try:
        with trio.fail_after(timeout_s):
            yield
    except trio.TooSlowError:
        raise ExchangeFailure(f"{name}: timeout") from None
    except BadExchange as error:
        raise ExchangeFailure(f"{name}: {error}") from None
    except KeyExhausted as error:
        raise ExchangeFailure(f"{name}: {error}") from None
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        raise ExchangeFailure(f"{name}: connection lost") from None


async def _send_frame(stream: trio.abc.Stream, frame: bytes) -> None:
    await stream.send_all(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)


async def _receive_frame(stream: trio.abc.Stream, bytes_max: int) -> bytes:
    length = int.from_bytes(await _receive_exactly(stream, LENGTH_BYTES), "big")
    if length > bytes_max:
        raise BadExchange(f"frame of {length} bytes")
    return await _receive_exactly(stream, length)


async def _receive_exactly(stream: trio.abc.Stream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = await stream.receive_some(min(RECEIVE_BYTES, count - len(data)))
        if not part:
            raise BadExchange("end of stream")
        data += part
    return bytes(data)


@dataclass
class StateExchangeStreams:
    """Initiates and serves exchanges for one process."""

    envelope: Envelope
    session: int
    random_bytes: Callable[[int], bytes]
    timeout_s: float
    served_max: int
    served: int = 0
    known: KnownAddresses = field(default_factory=KnownAddresses)
    unproven: AdmissionPool[trio.CancelScope] = field(init=False)

    def __post_init__(self) -> None:
        self.unproven = AdmissionPool(POOLS["gossip_exchanges"], self.known.knows)

    async def ask(self, address: Address, purpose: Purpose, reply: Callable[[bytes], Awaitable[bytes]]) -> bytes:
        """Run one exchange as the initiator.

        Args:
            address: Of the helper.
            purpose: Its purpose.
            reply: Maps the content of the helper's answer to the content of the request.

        Returns:
            The content of the result.

        Raises:
            ExchangeFailure: There was no authentic result.
        """
        with _step("connect", self.timeout_s):
            stream = trio.SocketStream(await _connect(address))
        async with stream:
            challenge = self.random_bytes(CHALLENGE_BYTES)
            seal = ExchangeSeal(self.envelope, purpose, challenge)
            with _step("answer", self.timeout_s):
                await _send_frame(stream, seal_hello(self.envelope, ExchangeHello(purpose, challenge, self.session)))
                answer = seal.open_answer(await _receive_frame(stream, FRAME_BYTES_MAX))
            with _step("result", self.timeout_s):
                await _send_frame(stream, seal.seal("request", await reply(answer)))
                return seal.open("result", await _receive_frame(stream, FRAME_BYTES_MAX))

    async def serve(
        self,
        stream: trio.SocketStream,
        place: AdmissionSlot[trio.CancelScope],
        answer: Callable[[Purpose], Awaitable[bytes]],
        result: Callable[[Purpose, bytes], Awaitable[bytes]],
    ) -> None:
        """Run one exchange as the helper.

        Args:
            stream: The connection; the caller closes it.
            place: Its admission slot, which it leaves when the initiator has proven the key.
            answer: Returns the content of the answer, once the initiator has proven the key.
            result: Executes the request of this exchange and returns the content of the result.

        Raises:
            ExchangeFailure: The peer was refused, or the limit of peers is reached.
        """
        hello = await self._hello(stream)
        place.leave()
        if self.served >= self.served_max:
            raise ExchangeFailure("too many exchanges")
        self.served += 1
        try:
            seal = ExchangeSeal(self.envelope, hello.purpose, hello.challenge)
            with _step("request", self.timeout_s):
                await _send_frame(
                    stream, seal.seal_answer(self.random_bytes(CHALLENGE_BYTES), await answer(hello.purpose))
                )
                request = seal.open("request", await _receive_frame(stream, FRAME_BYTES_MAX))
            self._proven(stream)
            with _step("result", self.timeout_s):
                await _send_frame(stream, seal.seal("result", await result(hello.purpose, request)))
        finally:
            self.served -= 1

    async def _hello(self, stream: trio.SocketStream) -> ExchangeHello:
        with _step("hello", UNPROVEN_TIMEOUT_S):
            hello = open_hello(self.envelope, await _receive_frame(stream, HELLO_BYTES_MAX))
        if hello.session == self.session:
            raise ExchangeFailure("hello: ourselves")
        return hello

    def _proven(self, stream: trio.SocketStream) -> None:
        """Record the address of a peer that sealed our challenge: a recorded hello proves no identity."""
        address = address_of(stream)
        self.known.add(address, address, trio.current_time())


async def _connect(address: Address) -> trio.socket.SocketType:
    family = trio.socket.AF_INET6 if ":" in address[0] else trio.socket.AF_INET
    sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock
