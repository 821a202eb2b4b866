"""Tests that an agent's event queue is limited by bytes: neighbours are not read, QoS 0 of the broker is dropped."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gateways.federation.event_queue import EVENTS_BYTES_MAX, EVENTS_MAX, EventQueue
from gateways.federation.events import Captured, HostDown, NeighbourFrame
from gateways.federation.links import READ_BYTES, TIER_FEDERATE
from mqtt.packets import Publish
from tests.gateways.federation.test_links import Site, hello_of, running, until
from tests.gateways.federation.test_start import host_of
from wire.links.authority import DevelopmentAuthority
from wire.links.connection import open_stream, wrap_tls
from wire.links.tls import link_contexts
from wire.messages.frames import HEADER, PROTOCOL_VERSION, FrameKind

FRAME_BYTES = 512 * 1024
FRAMES = 64


def test_event_queue_counts_bytes_that_peers_choose_and_events() -> None:
    """Either limit makes it full; one iteration empties it."""
    queue = EventQueue()
    queue.put(NeighbourFrame("b", bytes(EVENTS_BYTES_MAX - 3)))
    assert not queue.is_full
    queue.put(Captured(0, "t", b"xy", 0, False, {}, (), 0))
    assert queue.is_full and queue.octets == EVENTS_BYTES_MAX
    assert len(queue.take()) == 2 and not queue.is_full and queue.octets == 0
    for _ in range(EVENTS_MAX + 1):
        queue.put(HostDown())
    assert queue.is_full and queue.octets_most == EVENTS_BYTES_MAX


async def test_neighbour_with_large_frames_waits_until_a_turn_has_taken_them(tmp_path: Path) -> None:
    """32 MiB are sent without an iteration; 4 MiB are read, plus one read and its frame."""
    authority = DevelopmentAuthority(tmp_path, "f", datetime.datetime.now(datetime.UTC), "StrataMQ federation")
    queue, taken = EventQueue(), trio.Event()

    def put_events(events: list[Any]) -> None:
        for event in events:
            queue.put(event)

    files = authority.node(TIER_FEDERATE, "m")
    site = Site(files, put_events=put_events, room=lambda: taken.wait() if queue.is_full else None)

    async def flood(stream: Any) -> None:
        for number in range(1, FRAMES + 1):
            await stream.send_all(HEADER.pack(FRAME_BYTES, FrameKind.CONTROL, 0, PROTOCOL_VERSION, number))
            await stream.send_all(bytes(FRAME_BYTES))

    async with running(site), trio.open_nursery() as nursery:
        stream = await wrap_tls(
            await open_stream(f"127.0.0.1:{site.port}"),
            link_contexts(authority.node(TIER_FEDERATE, "b")).client,
            server_side=False,
        )
        await stream.send_all(hello_of("b"))
        nursery.start_soon(flood, stream)
        await until(lambda: queue.is_full)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert queue.octets_most <= EVENTS_BYTES_MAX + FRAME_BYTES + READ_BYTES
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("is_full", "kept"), [(True, 1), (False, 2)])
def test_broker_message_of_qos_0_is_dropped_and_counted_while_the_queue_is_full(
    tmp_path: Path, is_full: bool, kept: int
) -> None:
    """QoS 1 is accepted, since the Receive Maximum limits it."""
    events: list[Any] = []
    host = host_of("mqtt://127.0.0.1:1", tmp_path, events.append, lambda: is_full)
    for qos in (0, 1):
        host.received(host.connections[0], Publish("t", b"x" * 100, qos, packet_identifier=qos or None))
    assert len([each for each in events if isinstance(each, Captured)]) == kept
    assert host.counts["dropped_queue_full"] == 2 - kept
