"""The gossip shell in one process: real sockets on loopback, hostile peers over TCP and UDP, events, keys."""

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from membership import slices
from membership.admin import MemberKeys, rotate_keys
from membership.envelope import Envelope
from membership.event_queue import EventQueue
from membership.events import NodeEvent, NodeJoin, NodeLeave, NodeUpdate, Resync
from membership.exchange import FRAME_BYTES_MAX, HELLO_BYTES_MAX, ExchangeHello, seal_hello
from membership.exchange_streams import ExchangeFailure, StateExchangeStreams
from membership.gossip import Gossip, drop_level
from membership.key_requests import KeyRequest, KeyResponse
from membership.keyring import KeyRing, generate_key, key_id, read_key_file, write_key_file
from membership.members import Members, MemberView
from membership.metadata import NodeMetadata
from membership.packets import (
    Address,
    Alive,
    MemberRecord,
    Suspect,
    decode_records,
    encode_message,
    encode_records,
    join_messages,
)
from membership.settings import MembershipSettings
from tests.idle_connections import idle_connections
from tests.patience import PATIENCE_S

KEY = generate_key()


@contextlib.asynccontextmanager
async def gossiping(
    name: str,
    *seeds: Address,
    key: bytes = KEY,
    cluster: str = "c",
    folder: Path | None = None,
    events_max: int = 1024,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> AsyncIterator[Gossip]:
    """Run one member inside the block."""
    key_file = None
    if folder is not None:
        key_file = folder / f"{name}.keys"
        write_key_file(key_file, [key])
    settings = MembershipSettings(
        cluster=cluster,
        bind="127.0.0.1:0",
        profile="local",
        seeds=tuple(f"{host}:{port}" for host, port in seeds),
        key_file=key_file,
        events_max=events_max,
    )
    key_ring = None if folder else KeyRing([key])
    gossip = Gossip(settings, NodeMetadata(name, "edge", 1), key_ring=key_ring, random_bytes=random_bytes)
    async with trio.open_nursery() as nursery:
        await nursery.start(gossip.run)
        yield gossip
        nursery.cancel_scope.cancel()


def address_of(gossip: Gossip) -> Address:
    """Return the address of a member's socket."""
    return next(view.address for view in gossip.members() if view.is_self)


async def next_event(gossip: Gossip, kind: type[NodeEvent], within_s: float = PATIENCE_S) -> NodeEvent:
    """Return the next event of a kind."""
    with trio.fail_after(within_s):
        async for event in gossip.events:
            if isinstance(event, kind):
                return event
    raise AssertionError("no more events")


async def test_gossip_reports_join_update_and_leave() -> None:
    """The events that a service gets about another member."""
    async with gossiping("a") as first:
        async with gossiping("b", address_of(first)) as second:
            joined = await next_event(first, NodeJoin)
            assert isinstance(joined, NodeJoin) and joined.member.name == "b"
            await next_event(second, NodeJoin)
            second.update_metadata(NodeMetadata("b", "edge", 1, zone="z9"))
            updated = await next_event(first, NodeUpdate)
            assert isinstance(updated, NodeUpdate) and updated.member.metadata.zone == "z9"
            await second.leave()
        left = await next_event(first, NodeLeave)
        assert isinstance(left, NodeLeave) and left.member.state == "left"
        assert {view.name: view.state for view in first.members()} == {"a": "alive", "b": "left"}


async def test_gossip_other_cluster_or_key_does_not_join() -> None:
    """Both sides drop and count the packets."""
    async with (
        gossiping("a") as first,
        gossiping("b", address_of(first), cluster="d") as other_cluster,
        gossiping("e", address_of(first), key=generate_key()) as other_key,
    ):
        with trio.fail_after(PATIENCE_S):
            while not (first.counters()["dropped_wrong_cluster"] and first.counters()["dropped_unknown_key"]):
                await trio.sleep(0.01)  # a poll of counters, bounded above
        assert [len(each.members()) for each in (first, other_cluster, other_key)] == [1, 1, 1]


async def test_gossip_slow_service_gets_one_resync() -> None:
    """The event queue is bounded; dropped events are counted and replaced by reading the members."""
    async with gossiping("a", events_max=16) as first:
        assert first.events.statistics().max_buffer_size == 16
        assert first.counters()["events_dropped"] == 0
        update = NodeUpdate(first.members()[0])
    queue = EventQueue(16)
    for _ in range(40):
        queue.put(update)
    assert queue.dropped == 24
    for _ in range(16):
        queue.events.receive_nowait()
    queue.put(update)
    assert isinstance(queue.events.receive_nowait(), Resync)
    assert isinstance(queue.events.receive_nowait(), NodeUpdate)


async def test_gossip_udp_garbage_changes_no_state() -> None:
    """Random, oversized and empty packets are counted; the member continues."""
    async with gossiping("a") as first, gossiping("b", address_of(first)) as second:
        await next_event(first, NodeJoin)
        before = first.members()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hostile:
            for size in (0, 1, 56, 57, 500, 1400, 1401, 9000):
                hostile.sendto(os.urandom(size), address_of(first))
        with trio.fail_after(PATIENCE_S):
            while sum(count for name, count in first.counters().items() if name.startswith("dropped_")) < 8:
                await trio.sleep(0.01)  # a poll of counters, bounded above
        assert first.counters()["dropped_oversized"] == 2
        assert [view.incarnation for view in first.members()] == [view.incarnation for view in before]
        second.update_metadata(NodeMetadata("b", "edge", 1, zone="still here"))
        await next_event(first, NodeUpdate)


async def answer_to(address: Address, data: bytes) -> bytes:
    """Send bytes over TCP; return the reply until the other side closes."""
    received = b""
    with trio.fail_after(PATIENCE_S):
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            await stream.send_all(data)
            with contextlib.suppress(trio.BrokenResourceError):
                async for part in stream:
                    received += part
    return received


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (HELLO_BYTES_MAX + 1).to_bytes(4, "big") + b"x",
        (2**32 - 1).to_bytes(4, "big"),
        (100).to_bytes(4, "big") + os.urandom(100),
        (0).to_bytes(4, "big"),
        b"",  # sends nothing: closed after a second
    ],
)
async def test_gossip_unproven_tcp_peer_gets_no_bytes(data: bytes) -> None:
    """For any bytes sent before the key is proven."""
    async with gossiping("a") as first:
        assert await answer_to(address_of(first), data) == b""
        assert first.counters().get("exchanges_refused", 0) + first.exchanges_ended.get("silent", 0) == 1


async def test_gossip_member_joins_beside_idle_connections() -> None:
    """100 connections from the member's own address, reopened when closed."""
    async with gossiping("a") as first:
        idle = idle_connections(address_of(first), 100)
        await trio.to_thread.run_sync(idle.__enter__)
        try:
            async with gossiping("b", address_of(first)):
                await next_event(first, NodeJoin)
            assert sum(first.exchanges_ended.values()) > 50
        finally:
            await trio.to_thread.run_sync(idle.__exit__, None, None, None)


async def test_gossip_recorded_exchange_is_useless() -> None:
    """A replayed hello gets an unreadable answer; the replayed rest of the exchange is refused."""
    drawn: list[bytes] = []

    def recorded(size: int) -> bytes:
        drawn.append(os.urandom(size))
        return drawn[-1]

    async with gossiping("a") as first, gossiping("b", address_of(first), random_bytes=recorded) as second:
        await next_event(first, NodeJoin)
        session = int.from_bytes(drawn[0], "big") >> 2  # the first one that a process draws
        envelope = Envelope("c", session, second.key_ring, Members(Random(1)), os.urandom)
        hello = seal_hello(envelope, ExchangeHello("keys", b"c" * 16, session))
        request = envelope.seal(b"anything", b"request\0keys\0" + b"c" * 16 + b"d" * 16)
        frames = b"".join(len(frame).to_bytes(4, "big") + frame for frame in (hello, request))
        before = first.key_ring.key_ids
        answer = await answer_to(address_of(first), frames)
        assert 0 < len(answer) < 200 < FRAME_BYTES_MAX
        assert first.counters()["dropped_forged"] == 1
        assert first.key_ring.key_ids == before


class CountedTurns(trio.abc.Instrument):
    """Counts loop iterations, in which other tasks can run."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        self.count += 1


async def test_gossip_processes_one_members_input_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stolen key full exchanges and datagrams arrive: the node's clients must run in between."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    session, count = 7, 1_000
    known = [Alive(1, session + n, "127.0.0.1", 9, NodeMetadata(f"m{n}", "edge", 1)) for n in range(count)]
    rows = b"".join(encode_records([MemberRecord("alive", alive) for alive in known]))
    envelope = Envelope("c", session, KeyRing([KEY]), Members(Random(1)), os.urandom)

    theirs: list[Alive] = []

    async def everybody(answer: bytes) -> bytes:
        theirs.extend(record.alive for record in decode_records(answer))
        return rows

    async with gossiping("a") as first:
        turns = CountedTurns()
        trio.lowlevel.add_instrument(turns)
        await StateExchangeStreams(envelope, session, os.urandom, PATIENCE_S, 8).ask(
            address_of(first), "members", everybody
        )
        assert len(first.members()) == 1 + count and turns.count >= count / slices.PIECE
        turns.count = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hostile:
            said = [encode_message(Suspect(f"m{n}", 1, "m1")) for n in range(2, 50)]
            hostile.sendto(envelope.seal_datagram(theirs[0].session, join_messages(said)), address_of(first))
        with trio.fail_after(PATIENCE_S):
            while first.counters().get("suspicions", 0) < len(said):
                await trio.lowlevel.checkpoint()
        assert turns.count >= len(said) / slices.PIECE - 1, "a turn between each two slices"


async def test_key_rotation_is_written_to_key_files(tmp_path: Path) -> None:
    """Install, use, remove on every member, each step written to its key file before the positive answer."""
    new = generate_key()
    async with (
        gossiping("a", folder=tmp_path) as first,
        gossiping("b", address_of(first), folder=tmp_path) as second,
    ):
        await next_event(first, NodeJoin)
        await next_event(second, NodeJoin)
        report = await rotate_keys(first, "use", key_id=key_id(new))
        assert not report.complete and "not installed on: a, b" in report.refused
        assert (await rotate_keys(first, "install", key=new)).complete
        assert not (await rotate_keys(second, "remove", key_id=key_id(KEY))).complete
        assert (await rotate_keys(second, "use", key_id=key_id(new))).complete
        report = await rotate_keys(first, "remove", key_id=key_id(KEY))
        assert report.complete and [member.key_ids for member in report.members] == [(key_id(new).hex(),)] * 2
        for name in ("a", "b"):
            assert read_key_file(tmp_path / f"{name}.keys") == [new]


async def test_key_rotation_step_that_cannot_be_written_fails(tmp_path: Path) -> None:
    """The member with a failing disk is reported by name, and keeps the key ring of its file."""
    folder = tmp_path / "gone"
    folder.mkdir()
    async with gossiping("a", folder=folder) as first:
        (folder / "a.keys").unlink()
        folder.rmdir()
        report = await rotate_keys(first, "install", key=generate_key())
        assert report.failed == ("a",) and "cannot write" in report.members[0].detail
        assert first.key_ring.keys == [KEY]


class FakeHolder:
    """Members, of which some do not answer."""

    def __init__(self, silent: set[str], states: dict[str, str]) -> None:
        self.silent, self.states, self.asked = silent, states, 0

    def members(self) -> list[MemberView]:
        """Return the members like gossip."""
        return [
            MemberView(name, state, 1, ("h", 1), NodeMetadata(name, "edge", 1), 0.0, name == "a")  # type: ignore[arg-type]
            for name, state in self.states.items()
        ]

    async def ask_keys(self, member: MemberView, request: KeyRequest) -> KeyResponse:  # noqa: ARG002
        """Answer, or fail."""
        self.asked += 1
        if member.name in self.silent:
            raise ExchangeFailure("connect: timeout")
        return KeyResponse(member.name, True, "changed", (key_id(KEY),), False)


async def test_rotate_keys_partial_success_is_a_failure_with_names(autojump_clock: trio.testing.MockClock) -> None:  # noqa: ARG001
    """Live members are contacted three times, dead ones once and reported, left ones not at all."""
    states = {"a": "alive", "b": "alive", "c": "suspect", "d": "dead", "e": "left"}
    holder = FakeHolder({"b", "d"}, states)
    report = await rotate_keys(holder, "install", key=KEY)
    assert not report.complete
    assert report.failed == ("b", "d")
    assert [member.name for member in report.members] == ["a", "b", "c", "d"]
    assert holder.asked == 1 + 3 + 1 + 1
    assert report.members[1] == MemberKeys("b", "alive", False, "connect: timeout")


async def test_rotate_keys_use_is_refused_while_a_member_does_not_answer(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
) -> None:
    """It may lack the key; ``force`` overrides the check."""
    holder = FakeHolder({"b"}, {"a": "alive", "b": "alive"})
    assert "b" in (await rotate_keys(holder, "use", key_id=key_id(KEY))).refused
    assert (await rotate_keys(holder, "use", key_id=key_id(KEY), force=True)).failed == ("b",)


@pytest.mark.parametrize(
    "arguments", [("install", b"", b""), ("use", b"", b""), ("list", b"k", b""), ("remove", b"k", b"i")]
)
async def test_rotate_keys_requires_matching_arguments(arguments: tuple[str, bytes, bytes]) -> None:
    """A caller's mistake sends no request to the members."""
    operation, key, name = arguments
    with pytest.raises(ValueError, match="takes"):
        await rotate_keys(FakeHolder(set(), {"a": "alive"}), operation, key=key, key_id=name)  # type: ignore[arg-type]


def test_drop_level_of_an_ordinary_restart_is_below_warning() -> None:
    """A restarted member is unknown until its first exchange; a packet that no member sealed is a warning."""
    assert drop_level({"unknown_sender": 3, "stale_recipient": 1}) == logging.DEBUG
    assert drop_level({"unknown_sender": 3, "forged": 1}) == logging.WARNING
