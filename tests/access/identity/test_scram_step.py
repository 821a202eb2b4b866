"""SCRAM as a step of the chain, with the method of the edge (check A3)."""

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
    """The authenticated name is the user, and the last message is in CONNACK."""
    outcome = login("right")
    assert isinstance(outcome, Admitted)
    assert (outcome.principal.user, outcome.principal.method) == ("alice", "scram")
    assert outcome.principal.data.startswith(b"v=")
    outcome = login("wrong")
    assert isinstance(outcome, LoginRefused) and outcome.code == 0x87


def test_a_ticket_is_good_once() -> None:
    """A second correct answer starts no second session."""
    chain = Chain([scram_step()], ChainRules(True))
    outcome = chain.begin(first("alice"), NOW)
    assert isinstance(outcome, LoginPending) and isinstance(outcome.job, Challenge)
    assert isinstance(chain.resume(outcome.ticket, final("right", outcome.job), NOW), Admitted)
    assert isinstance(chain.resume(outcome.ticket, final("right", outcome.job), NOW), LoginRefused)


def test_scram_challenge_of_unknown_name_is_stable() -> None:
    """The salt depends on the cluster's secret and the name only."""
    challenges = set()
    for _ in range(2):  # two edges
        wait = scram_step().begin(first("nobody"), NOW)
        assert isinstance(wait, Wait) and isinstance(wait.job, Challenge)
        challenges.add(wait.job.data)
    other = scram_step(secret=bytes(32)).begin(first("nobody"), NOW)
    assert isinstance(other, Wait) and isinstance(other.job, Challenge)
    assert len(challenges) == 1 and other.job.data not in challenges
    known = scram_step().begin(first("alice"), NOW)
    assert isinstance(known, Wait) and isinstance(known.job, Challenge)
    (unknown,) = challenges
    assert [len(part) for part in known.job.data.split(b",")] == [len(part) for part in unknown.split(b",")]


def test_scram_challenge_forms_include_unknown_names() -> None:
    """Lines of a file may differ in iterations and salts, from each other and from users of the cluster."""
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


def test_scram_step_invalid_job_result_is_refused() -> None:
    """Data without an exchange, a finished exchange."""
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


def credentials(name: str) -> Credentials:
    return Credentials("l", "::1", "id", method="SCRAM-SHA-256", data=client_first(name), secure=True)


def challenge(step: ScramStep, name: str, user: UserRecord | None) -> Challenge:
    wait = step.begin(credentials(name), NOW)
    assert isinstance(wait, Wait) and isinstance(wait.job, FetchUser) and wait.job.user == name
    wait = step.resume(credentials(name), wait.job, UserFound(name, user), NOW)
    assert isinstance(wait, Wait) and isinstance(wait.job, Challenge)
    return wait.job


def proved(user: UserRecord | None, again: object, name: str = "ann", password: str = "good") -> Answer:
    """Authenticate with a password, with the routers' responses before the challenge and after the proof."""
    step = asking()
    job = challenge(step, name, user)
    answer = step.resume(credentials(name), job, ClientData(client_final(name, password, job.data)), NOW)
    if isinstance(answer, Wait):
        assert isinstance(answer.job, FetchUser)
        answer = step.resume(credentials(name), answer.job, again, NOW)
    return answer


def test_a_user_of_the_cluster_proves_itself_with_all_that_its_record_gives() -> None:
    answer = proved(ANN, UserFound("ann", ANN))
    assert isinstance(answer, Allow)
    found = answer.principal
    assert (found.user, found.method, found.roles, found.made, found.since) == ("ann", "scram", ("device",), 2, 3)
    assert found.limits == {"queue": 5} and found.groups == ("g",) and found.data.startswith(b"v=")


def test_scram_changes_during_exchange_apply() -> None:
    """Disabled, deleted, another password, no response; a changed role is used."""
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
    """A wrong password, an unknown name, one without a verifier, an invalid one: one refusal, and no second request."""
    for user, password in (
        (ANN, "bad"),
        (None, "good"),
        (UserRecord(None), "good"),
        (UserRecord(None, verifier=VERIFIER[:-1]), "good"),
        (UserRecord(None, verifier=VERIFIER.replace("256", "512")), "good"),
    ):
        answer = proved(user, AssertionError, password=password)
        assert answer == Deny(ReasonCode.NOT_AUTHORIZED, "SCRAM exchange failed")


def test_scram_unknown_cluster_user_has_same_challenge_form() -> None:
    """Equal iterations, a constant salt; disabled users, and those without a verifier, likewise."""
    shown = [read_challenge(challenge(asking(), "nobody", user).data) for user in (None, UserRecord(None))]
    assert shown[0] == shown[1] and shown[0][2] == CLUSTER_ITERATIONS
    known = read_challenge(challenge(asking(), "ann", UserRecord(None, disabled=True, verifier=VERIFIER)).data)
    assert known[2] == CLUSTER_ITERATIONS and len(known[1]) == len(shown[0][1])
    long = asking().begin(credentials("x" * 257), NOW)  # cannot be sent
    assert isinstance(long, Wait) and isinstance(long.job, Challenge)


def test_scram_user_of_file_ignores_routers() -> None:
    """For any response of the routers; they are asked anyway, so that it takes as long."""
    step = asking()
    job = challenge(step, "alice", UserRecord(None, made=2, verifier=make_verifier("alice", "other", b"1" * 16)))
    answer = step.resume(credentials("alice"), job, ClientData(client_final("alice", "right", job.data)), NOW)
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
def test_read_verifier_invalid_text_is_refused(text: str) -> None:
    """Each counts as unknown."""
    assert read_verifier(VERIFIER) == make_user("good", b"salt" * 4, CLUSTER_ITERATIONS)
    with pytest.raises(ValueError, match=r"verifier|padding"):
        read_verifier(text)


def test_make_verifier_unsendable_name_is_refused() -> None:
    with pytest.raises(ValueError, match="IX"):
        make_verifier("\u2168", "good", b"salt" * 4)
