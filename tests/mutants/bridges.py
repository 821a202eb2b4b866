"""Rules of bridges, each removed, and the seeds of their simulation that detect it."""

from collections.abc import Callable, Sequence

from gateways.bridges.exchanges import SinkExchanges
from gateways.bridges.mqtt_end import MqttEnd
from gateways.bridges.offsets import Offsets
from gateways.bridges.pump import BridgePump
from mqtt.client_session import StateChange
from mqtt.packets import Publish, SubscriptionRequest
from tests.gateways.bridges import bridge_simulation
from tests.gateways.bridges import test_bridge_simulation as _B
from tests.gateways.bridges import test_offsets as _O
from tests.mutants.seeded import SeededBug

__all__ = ["BRIDGES"]

RECEIVED = MqttEnd.received
KEEP, NOTE = SinkExchanges.keep, SinkExchanges._record_changes


def _acknowledge_before_the_sink(self: MqttEnd, packet: Publish) -> None:
    if self.client is not None:
        self.client.acknowledge(packet)
    RECEIVED(self, packet)


def _drop_failed_dead_letter(self: BridgePump, token: int, _now: float) -> None:
    self.dead_letter_done(token)


def _leave_before_the_sync(
    self: SinkExchanges, side: str, changes: Sequence[StateChange], then: Callable[[], None]
) -> None:
    KEEP(self, side, changes, lambda: None)
    then()


def _without_finished(self: SinkExchanges, side: str, changes: Sequence[StateChange]) -> None:
    NOTE(self, side, [each for each in changes if each.kind != "finished"])


def _without_no_local(filters: dict[str, int]) -> list[SubscriptionRequest]:
    return [SubscriptionRequest(name, qos, False, True, 1) for name, qos in filters.items()]


BRIDGES: tuple[SeededBug, ...] = (
    SeededBug(
        "a source is acknowledged before the sink has the message",
        "gateways/bridges/mqtt_end.py MqttEnd.received",
        lambda patch: patch.setattr(MqttEnd, "received", _acknowledge_before_the_sink),
        _B.test_seeds,
        "test_seeds",
    ),
    SeededBug(
        "a dead letter that fails counts as done",
        "gateways/bridges/pump.py Pump.dead_letter_failed",
        lambda patch: patch.setattr(BridgePump, "dead_letter_failed", _drop_failed_dead_letter),
        _B.test_seeds,
        "test_seeds",
    ),
    SeededBug(
        "messages rejected by the sink count as done",
        "gateways/bridges/pump.py Pump.reject",
        lambda patch: patch.setattr(BridgePump, "reject", lambda self, token, *_: self.done(token)),
        _B.test_seeds,
        "test_seeds",
    ),
    SeededBug(
        "No Local is left out",
        "gateways/bridges/mqtt_bridge.py subscriptions",
        lambda patch: patch.setattr(bridge_simulation, "subscriptions", _without_no_local),
        _B.test_bridge_line_in_both_directions_has_no_echo,
        "test_bridge_line_in_both_directions_has_no_echo",
    ),
    SeededBug(
        "the spool is not synced before packets leave",
        "gateways/bridges/exchanges.py Exchanges.keep",
        lambda patch: patch.setattr(SinkExchanges, "keep", _leave_before_the_sync),
        _B.test_seeds_exactly_once,
        "test_seeds_exactly_once",
    ),
    SeededBug(
        "a message that was handed over leaves no row",
        "gateways/bridges/exchanges.py Exchanges.finished",
        lambda patch: patch.setattr(SinkExchanges, "finished", lambda *_: None),
        _B.test_seeds_exactly_once,
        "test_seeds_exactly_once",
    ),
    SeededBug(
        "a message keeps its row after PUBREL",
        "gateways/bridges/exchanges.py Exchanges._record_changes",
        lambda patch: patch.setattr(SinkExchanges, "_record_changes", _without_finished),
        _B.test_bridge_reused_identifiers_are_separate_messages,
        "test_bridge_reused_identifiers_are_separate_messages",
    ),
    SeededBug(
        "the highest offset is committed",
        "gateways/bridges/offsets.py Offsets.to_commit",
        lambda patch: patch.setattr(
            Offsets,
            "to_commit",
            lambda self: {name: found.next for name, found in self._partitions.items() if found.next > 0},
        ),
        _O.test_offsets_commit_stops_at_first_unfinished_record,
        "test_offsets_commit_stops_at_first_unfinished_record",
    ),
)
