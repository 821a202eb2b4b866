"""Silence on a link: an end speaks once a second, and gives up the other one after four."""

from wire.links.silence import SPEAK_S, Silence, Verdict


def test_a_quiet_end_speaks_each_second_and_a_silent_one_is_given_up() -> None:
    """Looks are counted: a process that was stopped reads before it judges."""
    silence = Silence(0.5)
    assert [silence.look() for _ in range(3)] == [Verdict.NOTHING, Verdict.SPEAK, Verdict.SPEAK]
    silence.spoke()
    silence.heard()
    assert silence.look() is Verdict.NOTHING
    verdicts = [silence.look() for _ in range(7)]
    assert verdicts[:6] == [Verdict.SPEAK] * 6 and verdicts[6] is Verdict.GIVE_UP


def test_an_edge_that_sent_nothing_since_the_last_look_owes_a_word() -> None:
    """Its frames are numbered; a word that has no number leaves the debt as it is."""
    silence = Silence(SPEAK_S)
    assert [silence.owes_word(number) for number in (0, 0, 0, 4, 4)] == [False, True, True, False, True]
