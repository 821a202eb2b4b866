"""The holder of an edge's access parts."""

import math
from typing import cast

from edge.access import EdgeAccess
from edge.clients.client import Client


class Part:
    """A part that records its calls."""

    def __init__(self, name: str, calls: list[str], deadline: float) -> None:
        self.name = name
        self.calls = calls
        self.deadline = deadline

    def step(self, now: float) -> None:
        self.calls.append(f"{self.name} step {now}")

    def next_deadline(self) -> float:
        return self.deadline

    def closed(self, client: Client, why: int) -> None:
        del client
        self.calls.append(f"{self.name} closed {why}")


def test_without_parts_deadline_is_infinite() -> None:
    access = EdgeAccess((), ())
    access.step(1.0)
    access.closed(cast(Client, None), 0)
    assert access.next_deadline() == math.inf


def test_policy_steps_before_authorization() -> None:
    calls: list[str] = []
    follower, logins, conduct = Part("follower", calls, 9.0), Part("logins", calls, 7.0), Part("conduct", calls, 1.0)
    access = EdgeAccess((follower, logins), (logins, conduct))
    access.step(1.0)
    access.closed(cast(Client, None), 2)
    assert calls == ["follower step 1.0", "logins step 1.0", "logins closed 2", "conduct closed 2"]
    assert access.next_deadline() == 7.0
