"""A repeated change gets the first answer, and only its own caller's."""

import pytest

from admin.http.idempotency import KEPT_S, KEYS_CALLER_MAX, Replays, StoredResponse
from admin.http.problems import Problem

ANSWER = StoredResponse(200, b"{}")


def test_the_first_answer_is_given_again() -> None:
    replays = Replays()
    assert replays.begin(0.0, "ann", "k", "digest") is None
    with pytest.raises(Problem, match="under way"):
        replays.begin(0.0, "ann", "k", "digest")
    replays.end("ann", "k", ANSWER)
    assert replays.begin(1.0, "ann", "k", "digest") is ANSWER
    assert replays.begin(1.0, "bob", "k", "digest") is None
    with pytest.raises(Problem, match="another request"):
        replays.begin(1.0, "ann", "k", "other")
    assert replays.begin(KEPT_S, "ann", "k", "other") is None


def test_what_failed_may_be_tried_again() -> None:
    replays = Replays()
    assert replays.begin(0.0, "ann", "k", "digest") is None
    replays.end("ann", "k", None)
    assert replays.begin(0.0, "ann", "k", "other") is None
    for key in ("", "k" * 256):
        with pytest.raises(Problem, match="Idempotency-Key"):
            replays.begin(0.0, "ann", key, "digest")


def test_no_key_is_forgotten_before_its_time() -> None:
    """A repeat of a forgotten one would be carried out twice: a caller with too many gets 429, others go on."""
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
