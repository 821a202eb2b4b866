"""A repeated change gets the first response, for the same caller only."""

import pytest

from admin.http.idempotency import KEPT_S, KEYS_CALLER_MAX, Replays, StoredResponse
from admin.http.problems import Problem

ANSWER = StoredResponse(200, b"{}")


def test_replay_returns_first_response() -> None:
    replays = Replays()
    assert replays.begin(0.0, "ann", "k", "digest") is None
    with pytest.raises(Problem, match="in progress"):
        replays.begin(0.0, "ann", "k", "digest")
    replays.end("ann", "k", ANSWER)
    assert replays.begin(1.0, "ann", "k", "digest") is ANSWER
    assert replays.begin(1.0, "bob", "k", "digest") is None
    with pytest.raises(Problem, match="another request"):
        replays.begin(1.0, "ann", "k", "other")
    assert replays.begin(KEPT_S, "ann", "k", "other") is None


def test_replay_failed_request_can_be_retried() -> None:
    replays = Replays()
    assert replays.begin(0.0, "ann", "k", "digest") is None
    replays.end("ann", "k", None)
    assert replays.begin(0.0, "ann", "k", "other") is None
    for key in ("", "k" * 256):
        with pytest.raises(Problem, match="Idempotency-Key"):
            replays.begin(0.0, "ann", key, "digest")


def test_replay_keys_are_stored_for_full_lifetime() -> None:
    """A repeat after removal would run twice: a caller with too many keys gets 429, others do not."""
    replays = Replays()
    for number in range(KEYS_CALLER_MAX):
        assert replays.begin(0.0, "ann", f"k{number}", "digest") is None
        replays.end("ann", f"k{number}", ANSWER)
    with pytest.raises(Problem) as refused:
        replays.begin(1.0, "ann", "one more", "digest")
    assert (refused.value.status, refused.value.code, refused.value.retry_s) == (429, "too_many_keys", KEPT_S - 1)
    assert replays.begin(1.0, "ann", "k0", "digest") is ANSWER
    assert replays.begin(1.0, "bob", "k0", "digest") is None
    assert replays.begin(KEPT_S, "ann", "one more", "digest") is None and len(replays) == 2
