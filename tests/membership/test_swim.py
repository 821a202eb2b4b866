"""One SWIM core at a time: its answers to each input."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membership.envelope import BODY_BYTES_MAX
from membership.events import (
    LeaveCompleted,
    LeaveRequested,
    MessagesReceived,
    MetadataChanged,
    NodeJoin,
    NodeLeave,
    NodeUpdate,
    RecordsReceived,
    SeedsResolved,
    Superseded,
    SwimReady,
    SwimTick,
)
from membership.metadata import NodeMetadata
from membership.packets import (
    MEMBERS_MAX,
    Ack,
    Alive,
    Dead,
    MemberRecord,
    Message,
    Nack,
    Ping,
    PingReq,
    Suspect,
    decode_messages,
)
from membership.profiles import LAN, LOCAL
from membership.swim import Swim


def metadata(name: str, process_incarnation: int = 1, zone: str = "") -> NodeMetadata:
    """Return a member's metadata."""
    return NodeMetadata(name, "router", process_incarnation, zone=zone)


def alive(number: int, incarnation: int = 1, *, session: int | None = None, process_incarnation: int = 1) -> Alive:
    """Return the description of member ``m<number>`` by itself."""
    session = 1000 + number if session is None else session
    return Alive(incarnation, session, "10.0.0.1", 2000 + number, metadata(f"m{number}", process_incarnation))


def forget_news(core: Swim) -> None:
    """Remove all pending news."""
    for number in range(10):
        core.news.discard(f"m{number}")


def swim(others: int = 0, incarnation: int = 5) -> Swim:
    """Return member m0, joined with m1, m2, ..., without pending news."""
    core = Swim(metadata("m0"), ("10.0.0.1", 2000), 1000, incarnation, LAN, Random(1), 0.0)
    if others:
        records = [MemberRecord("alive", alive(number)) for number in range(1, others + 1)]
        core.handle(0.0, RecordsReceived(records, initiated=True))
        forget_news(core)
    return core


def receive(core: Swim, sender: int, *messages: Message, now: float = 0.1) -> SwimReady:
    """Deliver one datagram."""
    return core.handle(now, MessagesReceived(1000 + sender, list(messages)))


def sent(ready: SwimReady) -> list[tuple[int, Message]]:
    """List (receiving member, message) of all datagrams."""
    return [(out.recipient_session - 1000, each) for out in ready.messages for each in decode_messages(out.body)]


def advance(core: Swim, ready: SwimReady, until: float) -> list[tuple[int, Message]]:
    """Fire all timers in time; return the sent messages."""
    messages = []
    while ready.next_deadline <= until:
        ready = core.handle(ready.next_deadline, SwimTick())
        messages += sent(ready)
    return messages


def state(core: Swim, number: int) -> str:
    """Return the state of a member in the core."""
    member = core.members.get(f"m{number}")
    return member.state if member else "unknown"


def test_swim_ping_is_answered_with_its_sequence() -> None:
    """SWIM section 3.1."""
    assert (1, Ack(77)) in sent(receive(swim(2), 1, Ping(77, "m0")))


def test_swim_ping_for_another_member_is_not_answered() -> None:
    """A process on a reused address does not answer for its predecessor."""
    assert sent(receive(swim(2), 1, Ping(77, "m9"))) == []


def test_swim_relay_forwards_ack_and_nacks_in_time() -> None:
    """Lifeguard section IV.A: a nack shows that the relay is reachable although the target is not."""
    core = swim(3)
    ready = receive(core, 1, PingReq(50, "m2"))
    [(to, ping)] = sent(ready)
    assert to == 2 and isinstance(ping, Ping)
    assert (1, Nack(50)) in advance(core, ready, 0.5)
    assert (1, Ack(50)) in sent(receive(core, 2, Ack(ping.sequence), now=0.6))  # late, but forwarded
    assert sent(receive(core, 2, Ack(ping.sequence), now=0.7)) == []  # once


def test_swim_relay_accepts_acks_only_from_its_target() -> None:
    core = swim(3)
    [(_, ping)] = sent(receive(core, 1, PingReq(50, "m2")))
    assert isinstance(ping, Ping)
    assert sent(receive(core, 3, Ack(ping.sequence))) == []


def test_swim_relay_nacks_an_unknown_target_at_once() -> None:
    """It cannot probe an unknown member, and the prober's health must not suffer for that."""
    assert sent(receive(swim(2), 1, PingReq(50, "m9"))) == [(1, Nack(50))]


def probe_until_failed(core: Swim) -> tuple[int, float]:
    """Let one round pass without an ack; return the target and the end of the round."""
    now = core.handle(0.0, SeedsResolved(())).next_deadline
    while True:
        ready = core.handle(now, SwimTick())
        pings = [(to, each) for to, each in sent(ready) if isinstance(each, Ping)]
        if pings:
            break
        now = ready.next_deadline
    target = pings[0][0]
    while state(core, target) == "alive":
        now = ready.next_deadline
        ready = core.handle(now, SwimTick())
    return target, now


def test_swim_missed_round_suspects_the_target_and_lowers_local_health() -> None:
    """Without an ack, and without a nack of three relays, both the target and the local member are suspicious."""
    core = swim(5)
    target, _ = probe_until_failed(core)
    assert state(core, target) == "suspect"
    assert core.health.score == 3


def test_swim_refutation_needs_a_higher_incarnation() -> None:
    """SWIM section 4.2: alive overrides suspect only with a higher incarnation."""
    core = swim(5)
    receive(core, 1, Suspect("m2", 1, "m1"))
    receive(core, 3, alive(2, 1))
    assert state(core, 2) == "suspect"
    ready = receive(core, 3, alive(2, 2))
    assert state(core, 2) == "alive"
    assert [type(event) for event in ready.events] == [NodeUpdate]


def test_swim_old_suspicion_and_death_are_ignored() -> None:
    """SWIM section 4.2: messages with a lower incarnation are outdated."""
    core = swim(5)
    receive(core, 3, alive(2, 7))
    assert receive(core, 1, Suspect("m2", 6, "m1"), Dead("m2", 6, "m1")).events == ()
    assert state(core, 2) == "alive"


def test_swim_dead_overrides_and_only_a_higher_incarnation_revives() -> None:
    """SWIM section 4.2, with the event for a service."""
    core = swim(5)
    ready = receive(core, 1, Dead("m2", 1, "m1"))
    assert isinstance(ready.events[0], NodeLeave) and ready.events[0].member.state == "dead"
    assert receive(core, 1, alive(2, 1)).events == ()
    assert isinstance(receive(core, 1, alive(2, 2)).events[0], NodeJoin)


def test_swim_own_leave_is_left_not_dead() -> None:
    """A member that announces its own death has left."""
    core = swim(5)
    receive(core, 2, Dead("m2", 1, "m2"))
    assert state(core, 2) == "left"


@pytest.mark.parametrize("accusation", [Suspect("m0", 5, "m1"), Dead("m0", 5, "m1")])
def test_swim_accusation_of_the_local_member_is_refuted(accusation: Message) -> None:
    """Its incarnation exceeds the accusation's, and the local health falls."""
    core = swim(5)
    receive(core, 1, accusation)
    assert core.local.incarnation == 6
    assert core.health.score == 1
    news = [each for _, each in sent(core.handle(0.31, SwimTick()))]
    assert any(isinstance(each, Alive) and each.incarnation == 6 for each in news)


def test_swim_stale_accusation_is_answered_directly() -> None:
    """The accuser missed the refutation, whose dissemination may have ended."""
    core = swim(5)
    ready = receive(core, 1, Suspect("m0", 4, "m1"))
    assert core.local.incarnation == 5
    assert any(to == 1 and isinstance(each, Alive) and each.incarnation == 5 for to, each in sent(ready))


def test_swim_ping_of_a_suspect_includes_the_suspicion() -> None:
    """Lifeguard section IV.C, buddy system: a probed suspect can refute at once."""
    core = swim(5)
    receive(core, 1, Suspect("m2", 1, "m1"))
    forget_news(core)
    messages = sent(receive(core, 2, Ping(9, "m0")))
    assert (2, Suspect("m2", 1, "m0")) in messages


def test_swim_live_member_in_state_dead_is_informed() -> None:
    """It can return by one refutation."""
    core = swim(5)
    receive(core, 1, Dead("m2", 1, "m1"))
    forget_news(core)
    assert (2, Dead("m2", 1, "m0")) in sent(receive(core, 2, Ping(9, "m0")))


def test_swim_exchange_only_suspects_the_peers_dead_members() -> None:
    """They may still refute; unknown dead members are ignored."""
    core = swim(5)
    records = [MemberRecord("dead", alive(2)), MemberRecord("dead", alive(9)), MemberRecord("left", alive(3))]
    core.handle(1.0, RecordsReceived(records, initiated=True))
    assert [state(core, number) for number in (2, 9, 3)] == ["suspect", "unknown", "left"]


def test_swim_restarted_member_exceeds_its_former_incarnation() -> None:
    """It restarted with a lower incarnation than its former process reached."""
    core = swim(incarnation=2)
    records = [MemberRecord("alive", alive(1)), MemberRecord("dead", alive(0, 40, session=77))]
    core.handle(1.0, RecordsReceived(records, initiated=True))
    assert core.local.incarnation > 40
    assert not core.local.silent


def test_swim_newer_process_with_the_same_name_silences_the_older() -> None:
    """The older process stops sending, and its service gets an event."""
    core = swim(5)
    ready = receive(core, 1, alive(0, 900, session=77, process_incarnation=2))
    assert ready.events == (Superseded(2),)
    assert core.handle(50.0, SwimTick()) == SwimReady()


def test_swim_older_process_with_the_same_name_is_refuted() -> None:
    """The newer process stays, with a higher incarnation."""
    core = swim(5)
    receive(core, 1, alive(0, 900, session=77, process_incarnation=0))
    assert not core.local.silent
    assert core.local.incarnation == 901


def test_swim_session_belongs_to_one_name() -> None:
    """No member can take over the session of another one, or the local one."""
    core = swim(3)
    receive(core, 1, alive(9, session=1002), alive(8, session=1000), alive(1, 5, session=1002))
    assert (state(core, 9), state(core, 8)) == ("unknown", "unknown")
    assert core.members.get("m1").session == 1001  # type: ignore[union-attr]


def test_swim_members_are_bounded() -> None:
    """Beyond the bound new members are refused and counted."""
    core = swim(2)
    for number in range(10, MEMBERS_MAX + 20):
        receive(core, 1, alive(number))
    assert len(core.members) == MEMBERS_MAX - 1
    assert core.counters["refused_member"] > 0


def test_swim_metadata_is_sent_at_most_once_per_interval() -> None:
    """Load changes constantly; the newest value is sent after the interval."""
    core = swim(3)
    for step in range(10):
        core.handle(0.01 * step, MetadataChanged(metadata("m0", zone=f"z{step}")))
    assert core.local.incarnation == 6
    now = 0.0
    while core.local.metadata.zone != "z9":
        now = core.handle(now, SwimTick()).next_deadline
    assert core.local.incarnation == 7
    assert now <= LAN.metadata_interval_s + 0.5


def test_swim_metadata_cannot_rename() -> None:
    with pytest.raises(ValueError, match="name"):
        swim(1).handle(0.0, MetadataChanged(metadata("m7")))


def test_swim_leave_is_sent_before_silence() -> None:
    """After the news of the leave was sent, no message is answered."""
    core = swim(3)
    now = core.handle(0.2, LeaveRequested()).next_deadline
    told: list[tuple[int, Message]] = []
    while not core.local.silent:
        ready = core.handle(now, SwimTick())
        told += sent(ready)
        now = ready.next_deadline
    assert ready.events == (LeaveCompleted(),)
    assert {to for to, each in told if isinstance(each, Dead) and each.accuser == "m0"} == {1, 2, 3}
    assert receive(core, 1, Ping(1, "m0")) == SwimReady()


def test_swim_leave_without_members_ends_at_once() -> None:
    core = swim()
    now = core.handle(0.2, LeaveRequested()).next_deadline
    assert core.handle(now, SwimTick()).events == (LeaveCompleted(),)


def test_swim_pause_of_this_process_ends_no_suspicion() -> None:
    """After a stop of a minute neither the running probe fails nor a suspicion ends: all deadlines move."""
    core = swim(5)
    target, now = probe_until_failed(core)
    ready = core.handle(now + 60, SwimTick())
    assert not [event for event in ready.events if isinstance(event, NodeLeave)]
    assert state(core, target) == "suspect"
    assert core.counters["pauses"] == 1


def test_swim_states_count_all_views() -> None:
    """Including the local member, without a view of each member."""
    core = swim(5)
    receive(core, 1, Dead("m2", 1, "m1"), Suspect("m3", 1, "m1"))
    assert core.states() == Counter(view.state for view in core.views()) == {"alive": 4, "dead": 1, "suspect": 1}


def test_swim_dead_members_are_removed_after_their_retention() -> None:
    core = swim(5)
    receive(core, 1, Dead("m2", 1, "m1"))
    now = 0.2
    while now < LAN.dead_retention_s * 1.2:
        for member in core.members.live:  # the others stay alive
            core.members.set_state(member, "alive", now)
        now = core.handle(now, SwimTick()).next_deadline
    assert state(core, 2) == "unknown"


def test_swim_join_tries_seeds_until_one_answers() -> None:
    """With growing pauses, and never the local address."""
    core = swim()
    ready = core.handle(0.0, SeedsResolved((("10.0.0.1", 2000), ("10.0.0.9", 1))))
    asked = [exchange.address for exchange in ready.exchanges]
    now = ready.next_deadline
    while now < 10:
        ready = core.handle(now, SwimTick())
        asked += [exchange.address for exchange in ready.exchanges]
        now = ready.next_deadline
    assert set(asked) == {("10.0.0.9", 1)}
    assert 5 <= len(asked) <= 12


NAMES = st.sampled_from(["m0", "m1", "m2", "m3", "m9"])
INCARNATIONS = st.integers(0, 8) | st.integers(0, 2**63 - 1)
MESSAGES = (
    st.builds(Ping, st.integers(0, 9), NAMES)
    | st.builds(Ack, st.integers(0, 9))
    | st.builds(Nack, st.integers(0, 9))
    | st.builds(PingReq, st.integers(0, 9), NAMES)
    | st.builds(Suspect, NAMES, INCARNATIONS, NAMES)
    | st.builds(Dead, NAMES, INCARNATIONS, NAMES)
    | st.builds(
        Alive,
        INCARNATIONS,
        st.sampled_from([1000, 1001, 1002, 7]),
        st.just("10.0.0.1"),
        st.just(1),
        st.builds(NodeMetadata, NAMES, st.just("edge"), st.integers(0, 3)),
    )
)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(1, 3), MESSAGES, st.floats(0, 2)), max_size=40))
def test_swim_any_messages_keep_the_invariants(steps: list[tuple[int, Message, float]]) -> None:
    """For any messages in any order: no error, no falling incarnation of a live member, bounded packets and tables, and
    unique sessions.
    """
    core, now = swim(3), 0.1
    for sender, message, wait_s in steps:
        before = {member.name: member.incarnation for member in core.members.all()}
        for ready in (receive(core, sender, message, now=now), core.handle(now + wait_s, SwimTick())):
            assert all(len(out.body) <= BODY_BYTES_MAX for out in ready.messages)
            sent(ready)
        now += wait_s
        after = {member.name: member.incarnation for member in core.members.all()}
        assert all(after[name] >= before[name] for name in before)
        sessions = [member.session for member in core.members.all()]
        assert len(set(sessions)) == len(sessions) <= 5
        assert all(core.members.by_session(member.session) is member for member in core.members.all())


def test_swim_aligned_rounds_start_at_multiples_of_the_period() -> None:
    """Also after late wake-ups: members of one machine share their wake-ups."""
    core = Swim(metadata("m0"), ("10.0.0.1", 2000), 1000, 5, LOCAL, Random(1), 7.13)
    ready = core.handle(7.13, RecordsReceived([MemberRecord("alive", alive(1))], initiated=True))
    pinged: list[float] = []
    while len(pinged) < 5:
        now = ready.next_deadline + 0.003
        ready = core.handle(now, SwimTick())
        for _, each in sent(ready):
            if isinstance(each, Ping):
                pinged.append(now - 0.003)
                ready = receive(core, 1, Ack(each.sequence), now=now)
    first, period_s = pinged[0], LOCAL.protocol_period_s
    assert first % period_s == pytest.approx(0.0) and 7.13 < first < 8.13 + period_s
    assert pinged == pytest.approx([first + period_s * at for at in range(5)])
    for _ in range(40):  # so do rarer tasks: full exchanges, reconnection, removal
        ready = core.handle(ready.next_deadline, SwimTick())
        if not any(isinstance(each, Ping) for _, each in sent(ready)):
            continue
        assert ready.next_deadline % period_s == pytest.approx(0.2), "nothing but the wait for the ack"
        _, ping = next((to, each) for to, each in sent(ready) if isinstance(each, Ping))
        ready = receive(core, 1, Ack(ping.sequence), now=ready.next_deadline - 0.1)
        assert ready.next_deadline % period_s == pytest.approx(0.0)
