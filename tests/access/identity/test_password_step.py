"""The step password: unknown names cost a hash, successful logins are cached (checks A2, A3)."""

import statistics
import time

import pytest

from access.identity.chain import Admitted, Chain, ChainRules, LoginPending, LoginRefused, Outcome
from access.identity.password_step import (
    REMEMBERED_MAX,
    FetchUser,
    FileUsers,
    KnownLogins,
    PasswordStep,
    RouterUsers,
    UserFound,
    UserRecord,
)
from access.identity.passwords import HashJob, PasswordRecord, make_record, parse_record
from access.identity.principal import Allow, Answer, Credentials, Deny, Failed, Pass, TimePoint, Wait
from mqtt.reasons import ReasonCode
from tests.access.identity.test_passwords import KNOWN

SECRET = bytes(32)
RECORD, PASSWORD = parse_record(KNOWN["sha512"][0]), b"abc"
OTHER = parse_record(KNOWN["pbkdf2"][0])


def step_of(**users: PasswordRecord) -> PasswordStep:
    return PasswordStep(FileUsers(users, SECRET), KnownLogins(SECRET))


def given_by(user: str | None = "alice", password: bytes | None = PASSWORD, method: str = "") -> Credentials:
    return Credentials("l", "::1", "id", user, password, method=method)


def login(step: PasswordStep, credentials: Credentials, now: float = 0.0) -> tuple[HashJob | None, Answer]:
    """Return the requested hash, if any, and the last answer."""
    answer, job = step.begin(credentials, TimePoint(now, now)), None
    while isinstance(answer, Wait):
        assert isinstance(answer.job, HashJob)
        job = answer.job
        answer = step.resume(credentials, job, job.run(), TimePoint(now, now))
    return job, answer


def test_right_wrong_and_unknown() -> None:
    """A wrong password ends the chain, an unknown name continues, and all three cost a hash."""
    step = step_of(alice=RECORD)
    job, answer = login(step, given_by(password=b"wrong"))
    assert isinstance(answer, Deny) and answer.code == ReasonCode.BAD_USER_NAME_OR_PASSWORD and job is not None
    job, answer = login(step, given_by("mallory"))
    assert isinstance(answer, Pass) and job is not None and not job.known
    job, answer = login(step, given_by())
    assert isinstance(answer, Allow) and job is not None
    assert (answer.principal.user, answer.principal.method, answer.principal.client_id) == ("alice", "password", "id")
    assert b"abc".hex() not in repr(job) and "abc" not in repr(job)


@pytest.mark.parametrize("name", ["", "\0", "alice\0", "ALICE", "alice ", "\ud800", "e\u0301", "x" * 65_535, "+", "#"])
def test_password_step_unknown_names_cost_a_hash(name: str) -> None:
    """Look-alikes and invalid names cost a hash too, and are unknown."""
    job, answer = login(step_of(alice=RECORD), given_by(name))
    assert isinstance(answer, Pass) and job is not None and not job.known


def test_credentials_of_another_kind() -> None:
    """No name, no password, or a method of MQTT 5."""
    for credentials in (given_by(None), given_by(password=None), given_by(method="SCRAM-SHA-256")):
        assert login(step_of(alice=RECORD), credentials) == (None, Pass())


def test_password_step_matching_decoy_admits_no_client() -> None:
    step = step_of(alice=RECORD)
    wait = step.begin(given_by("mallory"), TimePoint(0, 0))
    assert isinstance(wait, Wait)
    assert isinstance(step.resume(given_by("mallory"), wait.job, True, TimePoint(0, 0)), Pass)


def test_password_step_invalid_job_result_is_refused() -> None:
    """A dead thread, or a result of another type, admits no client."""
    step = step_of(alice=RECORD)
    wait = step.begin(given_by(), TimePoint(0, 0))
    assert isinstance(wait, Wait) and isinstance(wait.job, HashJob)
    for result in (None, 1, "True", RuntimeError(), UserFound("alice", UserRecord(RECORD))):
        assert isinstance(step.resume(given_by(), wait.job, result, TimePoint(0, 0)), Failed)
    assert isinstance(step.resume(given_by(), HashJob("alice", RECORD, PASSWORD), True, TimePoint(0, 0)), Failed)
    assert isinstance(step.resume(given_by("bob"), wait.job, True, TimePoint(0, 0)), Deny)


def test_password_step_login_is_cached_for_a_minute() -> None:
    """A reconnecting fleet costs no hashes; use does not extend the minute."""
    step = step_of(alice=RECORD)
    assert login(step, given_by(), 0.0)[0] is not None
    for now in (1.0, 30.0, 59.9):
        job, answer = login(step, given_by(), now)
        assert job is None and isinstance(answer, Allow)
    assert login(step, given_by(password=b"wrong"), 59.9)[0] is not None
    assert login(step, given_by(), 60.0)[0] is not None


def test_password_step_reload_invalidates_cache_and_running_hashes() -> None:
    """Also for a hash that began before the change."""
    step = step_of(alice=RECORD)
    login(step, given_by())
    running = step_of(alice=RECORD)
    wait = running.begin(given_by(), TimePoint(0, 0))
    assert isinstance(wait, Wait)
    for each in (step, running):
        each.replace(FileUsers({"alice": OTHER}, SECRET))
    assert isinstance(running.resume(given_by(), wait.job, True, TimePoint(0, 0)), Deny)
    job, answer = login(step, given_by())
    assert job is not None and isinstance(answer, Deny)
    step.replace(FileUsers({"bob": OTHER}, SECRET))
    assert isinstance(login(step, given_by())[1], Pass)


def test_known_logins_are_bounded_and_reveal_nothing() -> None:
    known = KnownLogins(SECRET)
    user = UserRecord(RECORD)
    for number in range(REMEMBERED_MAX + 10):
        known.remember(b"%d" % number, 0.0)
    assert len(known) == REMEMBERED_MAX and not known.knows(b"9", 1.0) and known.knows(b"10", 1.0)
    keys = {
        known.key("ab", b"c", user),
        known.key("a", b"bc", user),
        known.key("ab", b"c", UserRecord(RECORD, version=1)),
        known.key("ab", b"c", UserRecord(OTHER)),
        KnownLogins(bytes(31) + b"x").key("ab", b"c", user),
    }
    assert len(keys) == 5


def test_password_step_requests_users_of_the_cluster() -> None:
    """Found, unknown, disabled, and no response."""
    step = PasswordStep(RouterUsers(SECRET), KnownLogins(SECRET))
    found = UserRecord(RECORD, 3, made=2, since=3, roles=("sensor",), attributes={"a": "b"}, limits={"queue": 5})

    def asked(record: UserRecord | None, password: bytes = PASSWORD) -> Answer:
        credentials = given_by(password=password)
        wait = step.begin(credentials, TimePoint(0, 0))
        assert wait == Wait(FetchUser("alice"))
        answer = step.resume(credentials, FetchUser("alice"), UserFound("alice", record), TimePoint(0, 0))
        if isinstance(answer, Wait):
            assert isinstance(answer.job, HashJob)
            answer = step.resume(credentials, answer.job, answer.job.run(), TimePoint(0, 0))
        return answer

    for _ in range(2):  # the second time from the cache
        answer = asked(found)
        assert isinstance(answer, Allow)
        assert (answer.principal.roles, answer.principal.limits) == (("sensor",), {"queue": 5})
        assert (answer.principal.made, answer.principal.since) == (2, 3)
    assert asked(UserRecord(RECORD, 4, disabled=True)) == Deny(ReasonCode.NOT_AUTHORIZED, "user disabled")
    assert asked(UserRecord(RECORD, disabled=True), b"x") == Deny(
        ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong password"
    )
    assert isinstance(asked(None), Pass)
    for result in (None, UserFound("bob", found)):
        assert isinstance(step.resume(given_by(), FetchUser("alice"), result, TimePoint(0, 0)), Failed)


def test_decoys_match_formats_of_file_and_are_stable() -> None:
    """With two formats in a file, unknown names get both, and each name always the same one."""
    users = FileUsers({"a": RECORD, "b": OTHER}, SECRET)
    decoys = [users.decoy(f"name-{number}") for number in range(200)]
    assert decoys == [users.decoy(f"name-{number}") for number in range(200)]
    assert 60 < sum(decoy.kind == RECORD.kind for decoy in decoys) < 140
    assert len({decoy.digest for decoy in decoys}) == 200
    for decoy in decoys:
        like = RECORD if decoy.kind == RECORD.kind else OTHER
        assert (decoy.iterations, len(decoy.salt), len(decoy.digest)) == (
            like.iterations,
            len(like.salt),
            len(like.digest),
        )


def _means(step: PasswordStep, names: tuple[str, str], rounds: int) -> list[float]:
    """Return the mean processor time of a login of each name with a wrong password, measured alternately."""
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else names[::-1]:
            began = time.thread_time()
            login(step, given_by(name, b"wrong"))
            spent[name].append(time.thread_time() - began)
    trimmed = (sorted(each)[rounds // 20 : -max(1, rounds // 20)] for each in spent.values())
    return [statistics.fmean(each) for each in trimmed]


def test_password_step_unknown_name_takes_as_long_as_wrong_password() -> None:
    """By processor time, with a generous tolerance for a busy machine. The exact value is below."""
    step = step_of(alice=make_record(b"x", bytes(16)))
    wrong, unknown = _means(step, ("alice", "nobody"), 12)
    assert 0.7 < unknown / wrong < 1.4


def test_a_wrong_password_costs_as_much_as_a_name_that_neither_source_has() -> None:
    """With a file before the cluster's users: both take both hashes, with a request in between.

    No response of the routers makes the wrong password right, not even a user of that name and password.
    """
    cluster, known = RouterUsers(SECRET), KnownLogins(SECRET)
    file = PasswordStep(FileUsers({"alice": OTHER}, SECRET), known, cluster)
    chain = Chain([file, PasswordStep(cluster, known)], ChainRules())

    def jobs(user: str, response: object, password: bytes = b"wrong") -> tuple[list[tuple[str, str, int]], Outcome]:
        outcome, found = chain.begin(given_by(user, password), TimePoint(0, 0)), []
        while isinstance(outcome, LoginPending):
            job = outcome.job
            result = job.run() if isinstance(job, HashJob) else response
            record = job.record if isinstance(job, HashJob) else OTHER
            found.append((job.kind, str(record.kind), record.iterations))
            outcome = chain.resume(outcome.ticket, result, TimePoint(0, 0))
        return found, outcome

    unknown, refused = jobs("nobody", UserFound("nobody", None))
    assert [job[0] for job in unknown] == ["hash", "user", "hash"] and isinstance(refused, LoginRefused)
    for response in (UserFound("alice", None), UserFound("alice", UserRecord(make_record(b"wrong", bytes(16)))), None):
        wrong, outcome = jobs("alice", response)
        assert wrong == unknown and isinstance(outcome, LoginRefused) and outcome.code == refused.code == 0x86
    assert jobs("bob", UserFound("bob", UserRecord(make_record(b"x", bytes(16)))))[0] == unknown
    right, outcome = jobs("alice", None, KNOWN["pbkdf2"][1])
    assert len(right) == 1 and isinstance(outcome, Admitted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "rounds"),
    [("$7$101$" + KNOWN["pbkdf2"][0].split("$", 3)[3], 10_000), (KNOWN["argon2id"][0], 10_000)],
    ids=["pbkdf2", "argon2id"],
)
def test_means_of_ten_thousand_are_within_five_percent(record: str, rounds: int) -> None:
    """Check A3."""
    step = step_of(alice=parse_record(record))
    wrong, unknown = _means(step, ("alice", "nobody"), rounds)
    assert 0.95 < unknown / wrong < 1.05


def test_password_step_user_without_password_and_overlong_name() -> None:
    """Both cost a hash, and are unknown to this step."""
    step = PasswordStep(RouterUsers(SECRET), KnownLogins(SECRET))
    wait = step.resume(
        given_by(), FetchUser("alice"), UserFound("alice", UserRecord(None, verifier="v")), TimePoint(0, 0)
    )
    assert isinstance(wait, Wait) and isinstance(wait.job, HashJob)
    assert isinstance(step.resume(given_by(), wait.job, True, TimePoint(0, 0)), Pass)
    long = step.begin(given_by("x" * 257), TimePoint(0, 0))
    assert isinstance(long, Wait) and isinstance(long.job, HashJob) and not long.job.known
