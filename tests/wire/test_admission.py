"""Admission to a link, its resume position, and redial: rules shared by edges and other tiers."""

import random

import pytest

from wire.links.admission import OPERATORS_MAX, HelloResume, admit, check_hello, resume
from wire.links.link_table import LinkTable
from wire.links.redial import backoff_s
from wire.messages.frames import PROTOCOL_VERSION
from wire.messages.hello import LinkError, LinkHello, NodeIdentity, PeerKey

EDGE = NodeIdentity("c", "e1", "edge", 7)
S1 = PeerKey("s1", "storage", 5)


@pytest.mark.parametrize("known", [None, S1, S1._replace(incarnation=4)])
def test_admit_same_or_newer_incarnation_is_accepted(known: PeerKey | None) -> None:
    admit(EDGE, S1, known, None, dialled=True)


@pytest.mark.parametrize(
    ("key", "known", "condemned", "words"),
    [
        (PeerKey("b", "balancer", 5), None, None, "edge e1 takes no link from balancer b"),
        (S1, S1._replace(tier="router"), None, "s1 was a router and now claims to be a storage"),
        (S1, S1._replace(incarnation=6), None, "s1 incarnation 5 is over, 6 was seen"),
        (S1, S1, "frame kind 2", "s1 broke the protocol and is refused until it starts again: frame kind 2"),
        (S1, None, "", "s1 broke the protocol and is refused until it starts again: "),
    ],
)
def test_admit_refusal_is_one_line(key: PeerKey, known: PeerKey | None, condemned: str | None, words: str) -> None:
    with pytest.raises(LinkError) as refused:
        admit(EDGE, key, known, condemned, dialled=True)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("mine", "key", "why"),
    [
        (EDGE, PeerKey("r9", "router", 5), "router r9 dialled this edge, and a router dials no edge"),
        (EDGE, S1, "storage s1 dialled this edge"),
        (NodeIdentity("c", "s2", "storage", 7), PeerKey("r9", "router", 5), "router r9 dialled this storage"),
    ],
)
def test_admit_incoming_link_of_a_higher_tier_is_refused(mine: NodeIdentity, key: PeerKey, why: str) -> None:
    """A router's certificate was accepted on any connection."""
    with pytest.raises(LinkError, match=why):
        admit(mine, key, None, None, dialled=False)
    admit(mine, key, None, None, dialled=True)


@pytest.mark.parametrize(
    ("position", "taken", "peer_incarnation", "resumed"),
    [
        (HelloResume(5, 3), 3, 7, 9),  # the connection resumes after frame 9
        (HelloResume(5, 3), 3, 6, 0),  # it counts frames of this node's incarnation before
        (HelloResume(4, 3), 0, 7, 9),  # the number belongs to another incarnation
        (HelloResume(), 0, 0, 0),
    ],
)
def test_resume_continues_if_both_incarnations_match(
    position: HelloResume, taken: int, peer_incarnation: int, resumed: int
) -> None:
    hello = LinkHello(PROTOCOL_VERSION, "c", "s1", "storage", 5, peer_incarnation, 9 if peer_incarnation else 0)
    assert resume(EDGE, hello, S1, position, taken) == resumed


@pytest.mark.parametrize(("position", "taken"), [(HelloResume(5, 3), 4), (HelloResume(4, 3), 3), (HelloResume(), 1)])
def test_resume_after_the_link_moved_is_refused(position: HelloResume, taken: int) -> None:
    with pytest.raises(LinkError, match="another connection moved the link meanwhile"):
        resume(EDGE, LinkHello(PROTOCOL_VERSION, "c", "s1", "storage", 5), S1, position, taken)


def test_backoff_grows_with_failures_within_bounds() -> None:
    rng = random.Random(1)
    waits = [[backoff_s(failures, rng) for _ in range(50)] for failures in (0, 1, 3, 100)]
    assert set(waits[0]) == {0.05}
    assert all(0.05 <= one <= 0.1 for one in waits[1])
    assert all(0.2 <= one <= 0.4 for one in waits[2])
    assert all(0.5 <= one <= 1.0 for one in waits[3])


def test_gateway_accepts_no_node_link() -> None:
    """Its peer key has a name that no node can have; its identity is certified like any other."""
    router = NodeIdentity("c", "r1", "router", 7)
    hello = LinkHello(PROTOCOL_VERSION, "c", "e1", "gateway", 5)
    key = check_hello(router, hello, ("c", "gateway", "e1"))
    assert key == PeerKey("gateway/e1", "gateway", 5)
    admit(router, key, None, None, dialled=False)
    with pytest.raises(LinkError, match="came with the certificate of gateway e2"):
        check_hello(router, hello, ("c", "gateway", "e2"))
    with pytest.raises(LinkError, match="edge e1 takes no link from gateway gateway/e1"):
        admit(EDGE, key, None, None, dialled=False)


def test_admission_is_checked_again_when_the_link_starts() -> None:
    """A later incarnation, or the maximum of operators, may arrive between HELLO and the start of the link."""
    reset: list[PeerKey] = []
    router = NodeIdentity("c", "r1", "router", 1)
    table = LinkTable(
        router, on_frame=lambda *_: None, on_up=lambda _: None, on_down=lambda _: None, on_reset=reset.append
    )
    table.peer_of(S1)
    later = table.peer_of(S1._replace(incarnation=6))
    with pytest.raises(LinkError):
        table.peer_of(S1)
    assert table.get("s1") is later
    assert reset == [S1]
    for number in range(OPERATORS_MAX):
        table.peer_of(PeerKey(f"op-{number}", "operator", 1))
    with pytest.raises(LinkError):
        table.peer_of(PeerKey("op-more", "operator", 1))
