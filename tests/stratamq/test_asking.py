"""Whom an operator's command asks, and for how long: routers that answer as they would during an election."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from conf.errors import ExitCode, UserError
from stratamq.cli import node_requests
from tests.wire.test_hub import CONTROL, Node, certificates, start
from wire.messages.control import decode_control, encode_control
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply

Answers = Callable[[int], tuple[bool, dict[str, Any] | None]]  # number of the question: ok, result


class Routers:
    """Some of them, with what each was asked."""

    def __init__(self, folder: Path, answers: list[Answers]) -> None:
        self.folder = folder
        self.asked = [0] * len(answers)
        self.questions: list[Admin] = []
        self.nodes = []
        for number, answer in enumerate(answers):
            node = Node("router", f"router-{number}", contexts=certificates(folder, "router", f"router-{number}"))
            node.on_frame = partial(self._answer, number, answer)
            self.nodes.append(node)
        certificates(folder, "operator", "operator")

    def _answer(self, number: int, answer: Answers, peer: PeerKey, payload: bytes) -> None:
        question = decode_control(payload)
        assert isinstance(question, Admin)
        self.questions.append(question)
        ok, result = answer(self.asked[number])
        self.asked[number] += 1
        reply = AdminReply(question.request, ok, result, "" if ok else "not now", 0 if ok else ExitCode.NOT_READY)
        assert self.nodes[number].hub.send(peer.node, CONTROL, encode_control(reply))

    async def ask(self, *, by_name: bool = False) -> AdminReply | UserError:
        """Have a command ask all of them, or the first one ``by_name``; what it gets, or how it ends."""
        answer: AdminReply | UserError
        async with trio.open_nursery() as nursery:
            addresses = [await start(nursery, node) for node in self.nodes]
            running = {"cluster": "test", "routers": addresses, "tls": str(self.folder)}
            (self.folder / "up.json").write_text(json.dumps(running))
            named = addresses[0] if by_name else ""
            try:
                answer = await trio.to_thread.run_sync(node_requests.ask_links, "ring drain", {}, named, self.folder)
            except UserError as error:
                answer = error
            nursery.cancel_scope.cancel()
        return answer


def follows(leader: str) -> Answers:
    """A router that does not lead."""
    return lambda _: (False, {"leader": leader, "leads": False})


async def test_a_command_waits_for_an_election(tmp_path: Path) -> None:
    """Nobody leads at first; the leader that one still names is dead."""

    def elected(number: int) -> tuple[bool, dict[str, Any]]:
        return (True, {"n": number}) if number >= 2 else (False, {"leader": "", "leads": False})

    routers = Routers(tmp_path, [follows("router-9"), elected])
    reply = await routers.ask()
    assert isinstance(reply, AdminReply) and reply.result == {"n": 2}
    assert routers.asked == [3, 3]


async def test_a_command_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a majority it says what each router said."""
    monkeypatch.setattr(node_requests, "ELECTION_S", 1.5)
    routers = Routers(tmp_path, [follows(""), follows("")])
    error = await routers.ask()
    assert isinstance(error, UserError) and error.exit_code == ExitCode.NOT_READY
    assert error.message.count("not now") == 2
    assert routers.asked[0] >= 2


async def test_an_order_of_unknown_fate_is_given_again_under_its_identifier(tmp_path: Path) -> None:
    """A router that took it and lost the lead may have carried it out: the next one knows the order by its name."""
    routers = Routers(tmp_path, [lambda _: (False, {"leader": ""}), lambda _: (True, {"n": 1})])
    reply = await routers.ask()
    assert isinstance(reply, AdminReply) and reply.result == {"n": 1}
    first, second = routers.questions
    assert first.order == second.order and len(first.order) == 32
    assert not first.repeated and second.repeated


async def test_request_after_router_without_effect_is_not_marked_repeated(tmp_path: Path) -> None:
    """It does not lead: the order is new to the next one."""
    routers = Routers(tmp_path, [follows("router-1"), lambda _: (True, {})])
    assert isinstance(await routers.ask(), AdminReply)
    assert not any(question.repeated for question in routers.questions)


async def test_each_order_has_an_identifier_of_its_own(tmp_path: Path) -> None:
    """The same words twice are two orders."""
    routers = Routers(tmp_path, [lambda _: (True, {})])
    await routers.ask()
    await Routers.ask(routers)
    assert len({question.order for question in routers.questions}) == 2


async def test_request_to_named_follower_fails_immediately(tmp_path: Path) -> None:
    """Whoever names a router is told whom to ask instead."""
    routers = Routers(tmp_path, [follows("router-1"), follows("")])
    assert isinstance(await routers.ask(by_name=True), UserError)
    assert routers.asked == [1, 0]
