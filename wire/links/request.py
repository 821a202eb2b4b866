"""One request of an operator to a node: connect, exchange HELLO, send, read the reply, close.

Used by the command line and by tests; the node that answers decides the meaning of verbs.
"""

import math
import os
import time

import trio

from conf.errors import ExitCode, UserError
from wire.links.admission import check_hello
from wire.links.connection import PeerGone, certified_identity, close_quietly, open_stream, read_hello, wrap_tls
from wire.links.link import LinkCore
from wire.links.silence import SPEAK_S
from wire.links.tls import LinkContexts
from wire.links.tls_stream import TlsStream
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_OPERATOR, LinkError, NodeIdentity, encode_hello
from wire.messages.operators import Admin, AdminReply

__all__ = ["request"]

READ_BYTES_MAX = 256 * 1024


class RequestTimeout(Exception):
    """The link ended after the request was sent: whether the node processed it is unknown."""


async def request(
    address: str,
    contexts: LinkContexts | None,
    message: Admin,
    *,
    cluster: str,
    tier: str,
    timeout_s: float = 10.0,
) -> AdminReply:
    """Send one Admin message to a node and return its reply.

    The certificate of the node must name ``tier``, the one that serves the verb: another node must not receive a secret
    or an order that is meant for that tier.

    Raises:
        UserError: The node cannot be reached (exit code 4), refused the link or is of another tier (1), or did not
            answer in time (4).
    """
    identity = NodeIdentity(cluster, f"cli-{os.getpid()}", TIER_OPERATOR, time.time_ns())
    try:
        with trio.fail_after(timeout_s):
            return await _exchange(address, contexts, message, identity, tier)
    except trio.TooSlowError:
        waited = "" if math.isinf(timeout_s) else f" within {timeout_s:g} s"
        raise UserError(f"{tier} {address} did not answer{waited}", ExitCode.NOT_READY) from None
    except RequestTimeout:
        raise UserError(f"{tier} {address} closed the link before it answered", ExitCode.NOT_READY) from None
    except PeerGone as error:
        raise UserError(f"cannot reach {tier} {address}: {error}", ExitCode.NOT_READY) from None
    except (LinkError, trio.BrokenResourceError) as error:
        raise UserError(f"{tier} {address}: {error}") from None
    except OSError as error:
        why = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise UserError(f"cannot reach {tier} {address}: {why}", ExitCode.NOT_READY) from None


async def _exchange(
    address: str, contexts: LinkContexts | None, message: Admin, identity: NodeIdentity, tier: str
) -> AdminReply:
    plain = await open_stream(address)
    stream = plain if contexts is None else await wrap_tls(plain, contexts.client, server_side=False)
    try:
        await stream.send_all(encode_hello(identity))
        hello, rest = await read_hello(stream)
        key = check_hello(identity, hello, certified_identity(stream))
        if key.tier != tier:
            raise LinkError(f"{key.tier} {key.node} answers there, and a {tier} was asked: nothing was sent")
        try:
            return await _answer(stream, message, rest)
        except trio.BrokenResourceError:
            raise RequestTimeout from None
    finally:
        await close_quietly(stream)


async def _answer(stream: trio.SocketStream | TlsStream, message: Admin, data: bytes) -> AdminReply:
    """Send a request on an established link and return the reply; ``data`` followed the HELLO.

    Sends a keepalive at least once a second, because nodes close silent links.
    """
    core = LinkCore()
    core.connected(0)
    core.send(FrameKind.CONTROL, encode_control(message))
    while True:
        for frame in core.receive(data):
            reply = decode_control(frame.payload) if frame.kind == FrameKind.CONTROL else None
            if isinstance(reply, AdminReply) and reply.request == message.request:
                return reply
        await stream.send_all(core.take_output())
        core.keepalive()
        data = b""
        with trio.move_on_after(SPEAK_S):
            data = bytes(await stream.receive_some(READ_BYTES_MAX))
            if not data:
                raise RequestTimeout
