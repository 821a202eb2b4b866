"""SCRAM as a step of the chain, with the method of the edge (RELIABILITY A3; protect)."""

import pytest

from access.identity.chain import Admitted, Chain, ChainRules, Outcome, Refused, Waiting
from access.identity.principal import Credentials, Deny, Failed, Moment, Pass, Wait
from access.identity.scram import Scram, make_user
from access.identity.scram_step import Challenge, ClientData, ScramStep
from tests.edge.test_scram import proof

NOW = Moment(1.0, 2.0)
CLUSTER = b"secret of the cluster, 32 bytes!"
USERS = {"alice": make_user("right", b"salt" * 4)}


def scram_step(nonce: str = "server", secret: bytes = CLUSTER, allow_plain: bool = False) -> ScramStep:
    return ScramStep(Scram(USERS, lambda: nonce, secret), allow_plain)


def first(name: str, secure: bool = True, method: str = "SCRAM-SHA-256") -> Credentials:
    return Credentials("l", "::1", "id", None, None, None, method, f"n,,n={name},r=client".encode(), secure)


def final(password: str, challenge: Challenge) -> ClientData:
    without_proof = "c=biws,r=clientserver"
    signed = proof(password, USERS["alice"], "n=alice,r=client", challenge.data.decode(), without_proof)
    return ClientData(f"{without_proof},p={signed}".encode())


def login(password: str) -> Outcome:
    chain = Chain([scram_step()], ChainRules(True))
    outcome = chain.begin(first("alice"), NOW)
    assert isinstance(outcome, Waiting) and isinstance(outcome.job, Challenge)
    return chain.resume(outcome.ticket, final(password, outcome.job), NOW)


def test_an_exchange_through_the_chain() -> None:
    """Identify: the proven name is the user, and the last message goes into CONNACK."""
    outcome = login("right")
    assert isinstance(outcome, Admitted)
    assert (outcome.principal.user, outcome.principal.method) == ("alice", "scram")
    assert outcome.principal.data.startswith(b"v=")
    outcome = login("wrong")
    assert isinstance(outcome, Refused) and outcome.code == 0x87


def test_a_ticket_is_good_once() -> None:
    """Protect: a second right answer begins no second session."""
    chain = Chain([scram_step()], ChainRules(True))
    outcome = chain.begin(first("alice"), NOW)
    assert isinstance(outcome, Waiting) and isinstance(outcome.job, Challenge)
    assert isinstance(chain.resume(outcome.ticket, final("right", outcome.job), NOW), Admitted)
    assert isinstance(chain.resume(outcome.ticket, final("right", outcome.job), NOW), Refused)


def test_unknown_names_look_the_same_at_each_edge_and_after_a_restart() -> None:
    """Protect: the salt depends on the cluster's secret and the name alone."""
    seen = set()
    for _ in range(2):  # two edges
        wait = scram_step().begin(first("nobody"), NOW)
        assert isinstance(wait, Wait) and isinstance(wait.job, Challenge)
        seen.add(wait.job.data)
    other = scram_step(secret=bytes(32)).begin(first("nobody"), NOW)
    assert isinstance(other, Wait) and isinstance(other.job, Challenge)
    assert len(seen) == 1 and other.job.data not in seen
    known = scram_step().begin(first("alice"), NOW)
    assert isinstance(known, Wait) and isinstance(known.job, Challenge)
    (unknown,) = seen
    assert [len(part) for part in known.job.data.split(b",")] == [len(part) for part in unknown.split(b",")]


def test_without_tls_only_when_allowed() -> None:
    assert isinstance(scram_step().begin(first("alice", secure=False), NOW), Deny)
    assert isinstance(scram_step(allow_plain=True).begin(first("alice", secure=False), NOW), Wait)


@pytest.mark.parametrize("method", ["", "JWT", "SCRAM-SHA-1", "scram-sha-256"])
def test_other_methods_are_for_other_steps(method: str) -> None:
    assert isinstance(scram_step().begin(first("alice", method=method), NOW), Pass)


def test_results_that_are_none() -> None:
    """Protect: data of no exchange, an exchange that is over."""
    step = scram_step()
    wait = step.begin(first("alice"), NOW)
    assert isinstance(wait, Wait)
    for result in (None, b"c=biws", True):
        assert isinstance(step.resume(first("alice"), wait.job, result, NOW), Failed)
    for data in (b"", b"\xff", b"c=biws,r=clientserver,p=AAAA", b"x" * 70_000):
        again = step.begin(first("alice"), NOW)
        assert isinstance(again, Wait)
        assert isinstance(step.resume(first("alice"), again.job, ClientData(data), NOW), Deny)
    assert isinstance(
        step.begin(Credentials("l", "::1", "id", method="SCRAM-SHA-256", data=b"x", secure=True), NOW), Deny
    )
