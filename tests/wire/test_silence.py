"""Silence on a link: an end speaks once a second, and gives up the other one after four."""

from wire.links.silence import SILENCE_S, SPEAK_S, Silence, SilenceCheck, speak_s_of
from wire.messages.hello import TIER_EDGE, TIER_OPERATOR


def test_a_quiet_end_speaks_each_second_and_a_silent_one_is_given_up() -> None:
    """Looks are counted: a process that was stopped reads before it judges."""
    silence = Silence(0.5)
    assert [silence.look() for _ in range(3)] == [SilenceCheck.NOTHING, SilenceCheck.SPEAK, SilenceCheck.SPEAK]
    silence.spoke()
    silence.heard()
    assert silence.look() is SilenceCheck.NOTHING
    verdicts = [silence.look() for _ in range(7)]
    assert verdicts[:6] == [SilenceCheck.SPEAK] * 6 and verdicts[6] is SilenceCheck.GIVE_UP


def test_an_edge_that_sent_nothing_since_the_last_look_owes_a_word() -> None:
    """Its frames are numbered; a word that has no number leaves the debt as it is."""
    silence = Silence(SPEAK_S)
    assert [silence.owes_word(number) for number in (0, 0, 0, 4, 4)] == [False, True, True, False, True]


def test_the_ends_of_an_operators_link_speak_half_as_often() -> None:
    """A service that nobody asks had to say and hear a word a second on each of its links; two may still be lost."""
    assert (speak_s_of(TIER_EDGE), speak_s_of(TIER_OPERATOR)) == (SPEAK_S, 2 * SPEAK_S)
    assert speak_s_of(TIER_OPERATOR) * 2 <= SILENCE_S
    silence = Silence(0.5, speak_s=speak_s_of(TIER_OPERATOR))
    assert [silence.look() for _ in range(4)] == [SilenceCheck.NOTHING] * 3 + [SilenceCheck.SPEAK]
    silence = Silence(SPEAK_S, speak_s=speak_s_of(TIER_OPERATOR))
    assert [silence.owes_word(0) for _ in range(3)] == [False, False, True]
