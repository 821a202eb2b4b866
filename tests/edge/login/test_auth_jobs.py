"""Queue of jobs: bounded, and fair to addresses."""

import random

from access.identity.chain import Ticket
from access.identity.passwords import HashJob, HashKind, PasswordRecord
from access.identity.principal import Credentials
from conf.edge_settings import EdgeSettings
from edge.login.auth_jobs import AuthJobs
from edge.login.chains import Chains
from edge.login.login_shells import LoginShells
from tests.edge.edge_harness import Edge


def ticket(address: str) -> Ticket:
    job = HashJob("u", PasswordRecord(HashKind.SHA512, b"", b""), b"")
    return Ticket(Credentials("l", address, "c"), 0, job, 1, None)


def test_queue_is_round_robin_by_address() -> None:
    desk = AuthJobs(10)
    for number in range(5):
        desk.put(number, ticket("flood"))
    desk.put(9, ticket("honest"))
    assert [taken[0] for _ in range(3) if (taken := desk.take())] == [0, 9, 1]


def test_full_queue_displaces_newest_of_largest_address() -> None:
    """Not for an address with as many."""
    desk = AuthJobs(4)
    assert [desk.put(number, ticket("flood")) for number in range(6)] == [None] * 4 + [4, 5]
    assert desk.put(10, ticket("honest")) == 3
    assert desk.put(11, ticket("honest")) == 2
    assert desk.put(12, ticket("honest")) == 12 and desk.put(13, ticket("flood")) == 13
    assert len(desk) == 4


def test_queue_bound_and_order_hold_for_random_use() -> None:
    """Each login leaves once: taken, withdrawn, or displaced."""
    rng = random.Random(3)
    desk, inside = AuthJobs(8), set[int]()
    for number in range(5_000):
        dice = rng.random()
        if dice < 0.6:
            inside.add(number)
            out = desk.put(number, ticket(rng.choice("abc")))
            inside.discard(number if out is None else out) if out is not None else None
        elif dice < 0.8 and inside:
            gone = rng.choice(sorted(inside))
            inside.discard(gone)
            desk.withdraw(gone)
        elif (taken := desk.take()) is not None:
            inside.remove(taken[0])
        assert len(desk) == len(inside) <= 8


def test_queue_bounds_of_an_edge() -> None:
    """200 for hashes, 1 000 for each kind of server; the next one of the same address is displaced."""
    edge = Edge()
    desks: dict[str, AuthJobs] = {}
    logins = edge.core.logins
    logins.add_job_queues = desks.update  # type: ignore[method-assign,assignment]
    LoginShells(EdgeSettings(), Chains(bytes(32)), logins, lambda: None)
    for kind, most in (("hash", 200), ("http", 1_000), ("jwks", 1_000), ("ocsp", 1_000)):
        answers = [desks[kind].put(number, ticket("flood")) for number in range(most + 1)]
        assert answers == [None] * most + [most]
