"""Maximum duration of iterations: of all, and of those without client packets."""

import time
from typing import Any

import pytest
import trio

from tests.clients.packets import PINGREQ, subscribe
from tests.edge.loop.test_loop import client, running


async def test_slow_handler_call_counts_as_longest_iteration(hot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow Handler call counts in its iteration."""
    async with running(hot) as edge:
        it = await client(edge)
        edge.loop.longest_ns = 0
        answer = edge.handler.packet

        def slow(*arguments: Any) -> None:
            end = time.monotonic() + 0.03
            while time.monotonic() < end:
                pass
            answer(*arguments)

        monkeypatch.setattr(edge.handler, "packet", slow)
        await it.send(subscribe(b"t", 1))
        await it.packets(1)
        await it.send(PINGREQ)
        await it.packets(1)
        assert edge.loop.longest_ns >= 30_000_000


async def test_longest_internal_iteration_excludes_client_packets(hot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core timer counts; a client packet is not the node's internal work."""
    spent_s = {"packet": 0.03, "turn_end": 0.0}

    def spend(stage: str) -> None:
        end = time.monotonic() + spent_s[stage]
        while time.monotonic() < end:
            pass

    async with running(hot) as edge:
        packet, turn_end = edge.handler.packet, edge.handler.turn_end

        def slow_packet(*arguments: Any) -> None:
            spend("packet")
            packet(*arguments)

        def slow_turn_end(now_ns: int) -> None:
            spend("turn_end")
            turn_end(now_ns)

        monkeypatch.setattr(edge.handler, "packet", slow_packet)
        monkeypatch.setattr(edge.handler, "turn_end", slow_turn_end)
        it = await client(edge)
        edge.loop.longest_own_ns = 0
        await it.send(subscribe(b"t", 1))
        await it.packets(1)
        assert edge.loop.longest_own_ns < 30_000_000 <= edge.loop.longest_ns
        spent_s["turn_end"] = 0.05
        while edge.loop.longest_own_ns < 50_000_000:
            await trio.sleep(0.01)
            edge.loop.kick()
