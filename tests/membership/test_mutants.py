"""Seeded bugs: each must be caught by a scenario or script."""

from collections.abc import Callable
from pathlib import Path

import pytest

from membership.dissemination import Dissemination
from membership.local_health import LocalHealth
from membership.member_states import MemberStates
from membership.probing import Probing
from membership.profiles import LAN
from membership.replay import ReplayWindow
from membership.suspicion import Suspicion
from membership.swim import Swim
from tests.membership import test_envelope, test_swim
from tests.membership.scenarios import detection_s, join_s, short_pauses, slow_members
from tests.membership.script import Script

Patch = Callable[[pytest.MonkeyPatch], None]


def script(name: str) -> Callable[[], None]:
    """Run one text script."""
    return Script((Path(__file__).parent / "scripts" / f"{name}.txt").read_text()).run


def no_false_death() -> None:
    """Members stopped for 5 s stay alive, on some seeds."""
    assert not any(short_pauses(seed) for seed in range(6))


def known_within_12_s() -> None:
    """A death is known everywhere in time, on some seeds."""
    assert max(detection_s(seed, 9)[1] for seed in range(6)) <= 12


def healthy_stay_alive() -> None:
    """Slow members cause few false deaths of healthy ones."""
    assert sum(slow_members(seed, LAN).seen for seed in range(2)) < 20


def nothing(*_: object, **__: object) -> None:
    """Do not execute the replaced function."""


def setting(owner: type, name: str, value: object) -> Patch:
    """Replace one attribute."""
    return lambda patch: patch.setattr(owner, name, value)


def forget_relays(patch: pytest.MonkeyPatch) -> None:
    """Never use relays."""
    patch.setattr(Probing, "direct_timeout", nothing)


def suspect_at_any_incarnation(patch: pytest.MonkeyPatch) -> None:
    """Refute without raising the incarnation."""
    patch.setattr(MemberStates, "refute", nothing)


def first_suspicion_kills(patch: pytest.MonkeyPatch) -> None:
    """Allow no time to refute."""
    patch.setattr(Suspicion, "deadline", property(lambda self: self._started))


def nobody_confirms(patch: pytest.MonkeyPatch) -> None:
    """Never shorten suspicions."""
    patch.setattr(Suspicion, "confirm", lambda *_: False)


MUTANTS: dict[str, tuple[Patch, Callable[[], None]]] = {
    "no relays": (forget_relays, script("indirect_probe")),
    "no refutation": (suspect_at_any_incarnation, no_false_death),
    "no time to refute": (first_suspicion_kills, no_false_death),
    "no confirmations": (nobody_confirms, known_within_12_s),
    "no reconnection": (setting(Swim, "_reconnect", nothing), script("partition")),
    "no notice of own pauses": (
        setting(Swim, "_notice_pause", nothing),
        test_swim.test_swim_pause_of_this_process_ends_no_suspicion,
    ),
    "no news": (setting(Dissemination, "add", nothing), lambda: _within(join_s(1, 8), 2.0)),
    "replays taken": (
        setting(ReplayWindow, "take", lambda *_: True),
        test_envelope.test_envelope_replayed_capture_changes_no_state,
    ),
    "no answer to stale accusers": (
        setting(Swim, "_answer_stale", nothing),
        test_swim.test_swim_stale_accusation_is_answered_directly,
    ),
    "no local health": (setting(LocalHealth, "_apply", nothing), script("bad_observer")),
    "own past ignored": (
        setting(MemberStates, "_alive_about_us", nothing),
        test_swim.test_swim_older_process_with_the_same_name_is_refuted,
    ),
}


def _within(seconds: float, limit_s: float) -> None:
    assert seconds < limit_s


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails with the bug in place."""
    patch, check = MUTANTS[name]
    patch(monkeypatch)
    with pytest.raises(AssertionError):
        check()
