"""A repeated change gets the first answer, and only its own caller's."""

import pytest

from admin.http.problems import Problem
from admin.http.replays import KEPT_S, KEYS_MAX, Answer, Replays

ANSWER = Answer(200, b"{}")


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


def test_what_failed_may_be_tried_again_and_keys_are_bounded() -> None:
    replays = Replays()
    assert replays.begin(0.0, "ann", "k", "digest") is None
    replays.end("ann", "k", None)
    assert replays.begin(0.0, "ann", "k", "other") is None
    for number in range(KEYS_MAX + 5):
        replays.begin(0.0, "ann", f"k{number}", "digest")
    assert len(replays) == KEYS_MAX
    for key in ("", "k" * 256):
        with pytest.raises(Problem, match="Idempotency-Key"):
            replays.begin(0.0, "ann", key, "digest")
