"""SCRAM as a step of the chain, with the method of the edge (check A3; protect)."""

import pytest

from access.identity.chain import Admitted, Chain, ChainRules, LoginPending, LoginRefused, Outcome
from access.identity.password_step import FetchUser, UserFound, UserRecord
from access.identity.principal import Allow, Answer, Credentials, Deny, Failed, Pass, TimePoint, Wait
from access.identity.scram import CLUSTER_ITERATIONS, Scram, make_user, make_verifier, read_verifier
from access.identity.scram_step import Challenge, ClientData, ScramStep
from mqtt.reasons import ReasonCode
from tests.clients.scram_exchange import client_final, client_first, read_challenge
from tests.edge.test_scram import proof

NOW = TimePoint(1.0, 2.0)
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
    assert isinstance(outcome, LoginPending) and isinstance(outcome.job, Challenge)
    return chain.resume(outcome.ticket, final(password, outcome.job), NOW)


def test_an_exchange_through_the_chain() -> None:
    """Identify: the proven name is the user, and the last message goes into CONNACK."""
    outcome = login("right")
    assert isinstance(outcome, Admitted)
    assert (outcome.principal.user, outcome.principal.method) == ("alice", "scram")
    assert outcome.principal.data.startswith(b"v=")
    outcome = login("wrong")
    assert isinstance(outcome, LoginRefused) and outcome.code == 0x87


def test_a_ticket_is_good_once() -> None:
    """Protect: a second right answer begins no second session."""
    chain = Chain([scram_step()], ChainRules(True))
    outcome = chain.begin(first("alice"), NOW)
    assert isinstance(outcome, LoginPending) and isinstance(outcome.job, Challenge)
    assert isinstance(chain.resume(outcome.ticket, final("right", outcome.job), NOW), Admitted)
    assert isinstance(chain.resume(outcome.ticket, final("right", outcome.job), NOW), LoginRefused)


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


def test_a_challenge_of_some_form_is_nobodys_as_well() -> None:
    """Protect: lines of a file may differ in iterations and salts, from each other and from users of the cluster."""
    forms = {(4_096, 16), (8_192, 64), (20_000, 12)}
    users = {f"u{most}": make_user("p", bytes(salt), most) for most, salt in forms}
    for asks, wanted in ((False, forms), (True, {*forms, (CLUSTER_ITERATIONS, 16)})):
        shown = [Scram(users, lambda: "n", CLUSTER, asks).lookup(f"nobody-{number}")[0] for number in range(200)]
        again = [Scram(users, lambda: "n", CLUSTER, asks).lookup(f"nobody-{number}")[0] for number in range(200)]
        assert shown == again and {(one.iterations, len(one.salt)) for one in shown} == wanted


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


# --- users of the cluster

VERIFIER = make_verifier("ann", "good", b"salt" * 4)
ANN = UserRecord(None, 3, made=2, since=3, roles=("device",), limits={"queue": 5}, groups=("g",), verifier=VERIFIER)


def asking(secret: bytes = CLUSTER) -> ScramStep:
    return ScramStep(Scram(USERS, lambda: "server", secret, asks=True))


def who(name: str) -> Credentials:
    return Credentials("l", "::1", "id", method="SCRAM-SHA-256", data=client_first(name), secure=True)


def challenge(step: ScramStep, name: str, told: UserRecord | None) -> Challenge:
    wait = step.begin(who(name), NOW)
    assert isinstance(wait, Wait) and isinstance(wait.job, FetchUser) and wait.job.user == name
    wait = step.resume(who(name), wait.job, UserFound(name, told), NOW)
    assert isinstance(wait, Wait) and isinstance(wait.job, Challenge)
    return wait.job


def proved(told: UserRecord | None, again: object, name: str = "ann", password: str = "good") -> Answer:
    """Prove a name by a password, where the routers tell this before and that behind the proof."""
    step = asking()
    job = challenge(step, name, told)
    answer = step.resume(who(name), job, ClientData(client_final(name, password, job.data)), NOW)
    if isinstance(answer, Wait):
        assert isinstance(answer.job, FetchUser)
        answer = step.resume(who(name), answer.job, again, NOW)
    return answer


def test_a_user_of_the_cluster_proves_itself_with_all_that_its_record_gives() -> None:
    answer = proved(ANN, UserFound("ann", ANN))
    assert isinstance(answer, Allow)
    found = answer.principal
    assert (found.user, found.method, found.roles, found.made, found.since) == ("ann", "scram", ("device",), 2, 3)
    assert found.limits == {"queue": 5} and found.groups == ("g",) and found.data.startswith(b"v=")


def test_what_came_while_the_client_thought_counts() -> None:
    """Protect: disabled, deleted, another password, no answer; another role is the one that counts."""
    other = UserRecord(None, 4, made=2, verifier=make_verifier("ann", "good", b"tlas" * 4))
    for again, kind in (
        (UserFound("ann", None), Deny),
        (UserFound("ann", other), Deny),
        (UserFound("ann", UserRecord(None, 4, made=2, disabled=True, verifier=VERIFIER)), Deny),
        (UserFound("bob", ANN), Failed),
        (None, Failed),
    ):
        assert isinstance(proved(ANN, again), kind)
    answer = proved(ANN, UserFound("ann", UserRecord(None, 9, made=2, roles=("new",), verifier=VERIFIER)))
    assert isinstance(answer, Allow) and answer.principal.roles == ("new",)


def test_wrong_proofs_of_the_clusters_users() -> None:
    """Protect: a wrong password, nobody, one without a verifier, a damaged one: one refusal, and no second question."""
    for told, password in (
        (ANN, "bad"),
        (None, "good"),
        (UserRecord(None), "good"),
        (UserRecord(None, verifier=VERIFIER[:-1]), "good"),
        (UserRecord(None, verifier=VERIFIER.replace("256", "512")), "good"),
    ):
        answer = proved(told, AssertionError, password=password)
        assert answer == Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM exchange failed")


def test_nobody_looks_like_somebody_at_each_edge() -> None:
    """Protect: the iterations of all, a salt that stays; disabled users, and those without a verifier, likewise."""
    shown = [read_challenge(challenge(asking(), "nobody", told).data) for told in (None, UserRecord(None))]
    assert shown[0] == shown[1] and shown[0][2] == CLUSTER_ITERATIONS
    known = read_challenge(challenge(asking(), "ann", UserRecord(None, disabled=True, verifier=VERIFIER)).data)
    assert known[2] == CLUSTER_ITERATIONS and len(known[1]) == len(shown[0][1])
    long = asking().begin(who("x" * 257), NOW)  # no question may carry it
    assert isinstance(long, Wait) and isinstance(long.job, Challenge)


def test_a_name_of_the_file_is_the_files() -> None:
    """Identify: whatever the routers tell of it; it is asked for all the same, so that it takes as long."""
    step = asking()
    job = challenge(step, "alice", UserRecord(None, made=2, verifier=make_verifier("alice", "other", b"1" * 16)))
    answer = step.resume(who("alice"), job, ClientData(client_final("alice", "right", job.data)), NOW)
    assert isinstance(answer, Allow) and answer.principal.made == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-256$4095" + VERIFIER[20:],
        VERIFIER.replace("$100000:", "$99999999:"),
        VERIFIER + "x",
        VERIFIER.replace(":", ""),
        VERIFIER.rpartition(":")[0] + ":AAAA",
    ],
)
def test_verifiers_that_are_none(text: str) -> None:
    """Protect: each is as good as nobody."""
    assert read_verifier(VERIFIER) == make_user("good", b"salt" * 4, CLUSTER_ITERATIONS)
    with pytest.raises(ValueError, match=r"verifier|padding"):
        read_verifier(text)


def test_names_that_no_client_could_send() -> None:
    with pytest.raises(ValueError, match="IX"):
        make_verifier("\u2168", "good", b"salt" * 4)
