"""Heartbeats that contradict the log at the leader: counted, shown, answered with a reload; they settle no epoch."""

from tests.router.test_schedules_routes import Router, heartbeat
from wire.messages.digests import EPOCHS_KEPT, DigestLog, Verdict
from wire.messages.nodes import Heartbeat, HeartbeatReply


def replies(router: Router, beat: Heartbeat) -> list[HeartbeatReply]:
    router.sent.clear()
    router.tell(beat.node, beat)
    router.beat()
    return [message for node, message in router.sent if node == beat.node and isinstance(message, HeartbeatReply)]


def test_map_epoch_above_the_log_gets_no_lease_and_a_reload() -> None:
    """A forged step: the epoch was never committed, so it settles nothing."""
    router = Router("e1")
    (fits,) = replies(router, heartbeat(router, "e1", 0.1))
    assert fits.lease_s > 0 and not fits.reload_map and not router.core.contradictions.nodes
    settled = router.core.leases.settled_epoch(router.core.machine.map)
    beat = heartbeat(router, "e1", 0.2)
    beat.map_epoch += 1
    (reply,) = replies(router, beat)
    assert reply.reload_map and not reply.lease_s and not reply.reload_policy
    assert router.core.contradictions.nodes == {"e1": ("map",)}
    assert router.core.counts["heartbeats_map_ahead"] == 1
    assert router.core.leases.settled_epoch(router.core.machine.map) == settled
    replies(router, heartbeat(router, "e1", 0.3))
    assert not router.core.contradictions.nodes


def test_other_digest_of_a_known_epoch_gets_a_reload() -> None:
    """The epoch number alone settles neither map nor policy."""
    router = Router("e1")
    beat = heartbeat(router, "e1", 0.1)
    beat.map_digest, beat.policy_received, beat.policy_digest = b"another", 0, b"another"
    (reply,) = replies(router, beat)
    assert reply.reload_map and reply.reload_policy and not reply.lease_s
    assert router.core.contradictions.nodes == {"e1": ("map", "policy")}
    assert router.core.counts["heartbeats_map_other"] == router.core.counts["heartbeats_policy_other"] == 1


def test_forgotten_epoch_does_not_contradict() -> None:
    """A node that lags far behind is checked again when it is closer."""
    log = DigestLog()
    for epoch in range(1, EPOCHS_KEPT + 2):
        log.note(epoch, b"%d" % epoch)
    assert log.verdict(0, b"") is Verdict.FITS
    assert log.verdict(1, b"1") is Verdict.UNKNOWN and not log.verdict(1, b"x").contradicts
    assert log.verdict(2, b"2") is Verdict.FITS and log.verdict(2, b"3") is Verdict.OTHER
    assert log.verdict(EPOCHS_KEPT + 2, b"") is Verdict.AHEAD
