"""A router refuses a question with wrong arguments, and goes on."""

from typing import Any

import pytest

from router.core import RouterCore
from router.settings import RouterSettings
from tests.router.test_ring_export import OPERATOR
from tests.wire.test_verbs import WRONG
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.operators import Admin, AdminReply
from wire.node.events import FrameArrived


@pytest.mark.parametrize(("verb", "arguments"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_question_is_answered_with_exit_code_2(verb: str, arguments: dict[str, Any]) -> None:
    """`ring plan {"drain": 5}` ended a router."""
    core = RouterCore(NodeEntry("r0", "router", 1, "r0:1"), RouterSettings())
    frame = FrameArrived(OPERATOR, FrameKind.CONTROL, encode_control(Admin(7, verb, arguments)))
    ready = core.handle(1.0, [frame])
    replies = [decode_control(payload) for node, _, payload in ready.sends if node == OPERATOR.node]
    (reply,) = [reply for reply in replies if isinstance(reply, AdminReply)]
    assert (reply.request, reply.ok, reply.exit_code) == (7, False, 2)
    assert reply.error.startswith("router r0: ")
    assert core.handle(2.0, []) is not None
