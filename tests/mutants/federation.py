"""Rules of federation agents, each removed, and the test that detects it."""

import pytest

from gateways.federation import agent as agent_module
from gateways.federation.agent import Agent
from gateways.federation.capture import Capture
from gateways.federation.echoes import ExpectedEchoes
from gateways.federation.election import Election
from gateways.federation.events import Captured, Event
from gateways.federation.forwarder import Forwarder
from gateways.federation.overlay import Overlay
from gateways.federation.retained import Registers
from gateways.federation.transit_monitor import TransitMonitor
from gateways.spool_rows import Put
from tests.gateways.federation import test_agents as _A
from tests.gateways.federation import test_full_spools as _F
from tests.gateways.federation import test_passing_on as _P
from tests.gateways.federation import test_simulation as _S
from tests.gateways.federation.sim_process import SimProcess
from tests.mutants.seeded import SeededBug

__all__ = ["FEDERATION"]


def _acknowledge_first(patch: pytest.MonkeyPatch) -> None:
    """The broker is answered when the core has the message, and not when the spool has it."""

    def step(self: SimProcess, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Captured) and event.ref:
                self.taken.add(event.ref)
                self.broker.acknowledge(event.ref)
        return original(self, events)

    original = SimProcess.step
    patch.setattr(SimProcess, "step", lambda self, events=(): step(self, list(events)))


def _seen_later(patch: pytest.MonkeyPatch) -> None:
    """Rows of ``seen`` are stored by a later transaction than their messages."""
    late: dict[int, list[Put]] = {}

    def handle(self: Agent, now: float, events: tuple[Event, ...] = ()) -> object:
        ready = original(self, now, events)
        seen = [write for write in ready.writes if write.kind == "seen"]
        ready.writes = [*late.pop(id(self), []), *(write for write in ready.writes if write.kind != "seen")]
        late[id(self)] = [write for write in seen if isinstance(write, Put)]
        return ready

    original = agent_module.Agent.handle
    patch.setattr(Agent, "handle", handle)


def _capture_as_they_are(self: Capture) -> set[str]:
    return set(self._wanted)


def _without_marker(self: Capture, topic: str, identifiers: tuple[int, ...], connection: int) -> bool:
    del self, topic, connection
    return bool(identifiers)


FEDERATION: tuple[SeededBug, ...] = (
    SeededBug(
        "the broker is acknowledged before the spool has the message",
        "gateways/federation/agent.py Agent._captured",
        _acknowledge_first,
        _A.test_a_crash_after_capture_loses_nothing,
        "test_a_crash_after_capture_loses_nothing",
    ),
    SeededBug(
        "an id enters seen in a later transaction",
        "gateways/federation/rows.py Rows.mark_seen",
        _seen_later,
        _A.test_a_crash_after_delivery_duplicates_nothing,
        "test_a_crash_after_delivery_duplicates_nothing",
    ),
    SeededBug(
        "a core never gives way",
        "gateways/federation/election.py Election._resign",
        lambda patch: patch.setattr(Election, "_resign", lambda _self, _now, _state: None),
        _A.test_two_subscribers_at_once_have_one_core,
        "test_two_subscribers_at_once_have_one_core",
    ),
    SeededBug(
        "overlapping filters are captured as they are",
        "gateways/federation/capture.py Capture._hulls",
        lambda patch: patch.setattr(Capture, "_hulls", _capture_as_they_are),
        _A.test_overlapping_filters_are_captured_once,
        "test_overlapping_filters_are_captured_once",
    ),
    SeededBug(
        "the marker is left out",
        "gateways/federation/capture.py Capture.is_counted",
        lambda patch: patch.setattr(Capture, "is_counted", _without_marker),
        _A.test_a_changing_capture_set_loses_and_duplicates_nothing,
        "test_a_changing_capture_set_loses_and_duplicates_nothing",
    ),
    SeededBug(
        "expected echoes never end",
        "gateways/federation/echoes.py Echoes.expire",
        lambda patch: patch.setattr(ExpectedEchoes, "expire", lambda _self, _now: None),
        _A.test_a_missing_echo_expires,
        "test_a_missing_echo_expires",
    ),
    SeededBug(
        "a retained message that waited for room is a known one",
        "gateways/federation/retained.py Registers.is_redelivered",
        lambda patch: patch.setattr(Registers, "is_redelivered", lambda _self, _topic, _payload: False),
        _F.test_a_waiting_retained_message_is_not_known_after_a_crash,
        "test_a_waiting_retained_message_is_not_known_after_a_crash",
    ),
    SeededBug(
        "filters announced for other agents are not compared with received ones",
        "gateways/federation/transit_monitor.py PassingOn.record_handoff",
        lambda patch: patch.setattr(TransitMonitor, "record_handoff", lambda *_: None),
        _P.test_an_agent_that_forwards_nothing_is_reported_and_avoided,
        "test_an_agent_that_forwards_nothing_is_reported_and_avoided",
    ),
    SeededBug(
        "distant agents decide as soon as near ones",
        "gateways/federation/transit_monitor.py PassingOn.patience_s",
        lambda patch: patch.setattr(TransitMonitor, "patience_s", lambda _self, _destination: 35.0),
        _P.test_the_nearest_agent_judges_first,
        "test_the_nearest_agent_judges_first",
    ),
    SeededBug(
        "the only way is given up, too",
        "gateways/federation/overlay.py Overlay.has_detour",
        lambda patch: patch.setattr(Overlay, "has_detour", lambda _self, _neighbour: True),
        _P.test_the_only_path_is_kept,
        "test_the_only_path_is_kept",
    ),
    SeededBug(
        "rows of a neighbour that died take no other way",
        "gateways/federation/forwarder.py Courier._reroute",
        lambda patch: patch.setattr(Forwarder, "_reroute", lambda _self, _now: None),
        _S.test_seeds,
        "test_seeds",
    ),
)
