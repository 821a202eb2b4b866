"""Keepalive and idle timeout of a link: an end sends once a second, and closes a peer that is silent for four."""

from wire.links.silence import SILENCE_S, SPEAK_S, Silence, SilenceCheck, speak_s_of
from wire.messages.hello import TIER_EDGE, TIER_OPERATOR


def test_silence_idle_end_sends_each_second_and_a_silent_peer_is_closed() -> None:
    """Checks are counted: a process that was stopped reads its input first."""
    silence = Silence(0.5)
    assert [silence.look() for _ in range(3)] == [SilenceCheck.NOTHING, SilenceCheck.SPEAK, SilenceCheck.SPEAK]
    silence.spoke()
    silence.heard()
    assert silence.look() is SilenceCheck.NOTHING
    verdicts = [silence.look() for _ in range(7)]
    assert verdicts[:6] == [SilenceCheck.SPEAK] * 6 and verdicts[6] is SilenceCheck.GIVE_UP


def test_silence_keepalive_is_due_without_a_sent_frame() -> None:
    """Frames are numbered; a keepalive has no number and does not reset the interval."""
    silence = Silence(SPEAK_S)
    assert [silence.owes_word(number) for number in (0, 0, 0, 4, 4)] == [False, True, True, False, True]


def test_silence_operator_links_send_half_as_often() -> None:
    """An idle service sent and received a keepalive per second and link; two may still be lost."""
    assert (speak_s_of(TIER_EDGE), speak_s_of(TIER_OPERATOR)) == (SPEAK_S, 2 * SPEAK_S)
    assert speak_s_of(TIER_OPERATOR) * 2 <= SILENCE_S
    silence = Silence(0.5, speak_s=speak_s_of(TIER_OPERATOR))
    assert [silence.look() for _ in range(4)] == [SilenceCheck.NOTHING] * 3 + [SilenceCheck.SPEAK]
    silence = Silence(SPEAK_S, speak_s=speak_s_of(TIER_OPERATOR))
    assert [silence.owes_word(0) for _ in range(3)] == [False, False, True]
