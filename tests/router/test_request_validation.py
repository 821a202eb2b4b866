"""A router refuses a request with invalid arguments, and continues."""

from typing import Any

import pytest

from router.core import RouterCore
from router.settings import RouterLimits
from tests.access.operators.test_arguments import WRONG
from tests.router.test_ring_export import OPERATOR
from wire.messages.cluster_map import NodeEntry
from wire.messages.control import decode_control, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import PeerKey
from wire.messages.operators import Admin, AdminReply
from wire.node.events import FrameArrived


@pytest.mark.parametrize(("verb", "arguments"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_invalid_arguments_are_refused_with_exit_code_2(verb: str, arguments: dict[str, Any]) -> None:
    """Regression: `ring plan {"drain": 5}` ended a router."""
    core = RouterCore(NodeEntry("r0", "router", 1, "r0:1"), RouterLimits())
    frame = FrameArrived(OPERATOR, FrameKind.CONTROL, encode_control(Admin(7, verb, arguments)))
    ready = core.handle(1.0, [frame])
    replies = [decode_control(payload) for node, _, payload in ready.sends if node == OPERATOR.node]
    (reply,) = [reply for reply in replies if isinstance(reply, AdminReply)]
    assert (reply.request, reply.ok, reply.exit_code) == (7, False, 2)
    assert reply.error.startswith("router r0: ")
    assert core.handle(2.0, []) is not None


@pytest.mark.parametrize(
    ("peer", "why"),
    [
        (PeerKey("viewer:bob/cli-1", "operator", 1), "wants the role admin; the certificate of bob has viewer"),
        (PeerKey("operator:bob/cli-1", "operator", 1), "wants the role admin; the certificate of bob has operator"),
        (PeerKey("bob/cli-1", "operator", 1), "wants an operator's certificate"),
    ],
)
def test_insufficient_role_is_refused_and_counted(peer: PeerKey, why: str) -> None:
    """The router checks the role of the link before arguments, leader or map."""
    core = RouterCore(NodeEntry("r0", "router", 1, "r0:1"), RouterLimits())
    frame = FrameArrived(peer, FrameKind.CONTROL, encode_control(Admin(7, "cluster forget", {"node": "s1"})))
    replies = [decode_control(payload) for node, _, payload in core.handle(1.0, [frame]).sends if node == peer.node]
    (reply,) = [reply for reply in replies if isinstance(reply, AdminReply)]
    assert not reply.ok and reply.exit_code == 2 and why in reply.error
    assert core.counts["verbs_refused"] == 1
