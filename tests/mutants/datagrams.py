"""Rules of datagram nodes, each removed, and the test that detects it."""

import msgspec
import pytest

from gateways.datagrams import sealed
from gateways.datagrams.deliveries import Deliveries, PendingDelivery
from gateways.datagrams.device import Device
from gateways.datagrams.jurisdiction import Child
from gateways.datagrams.messages import Datagram, DatagramPublish, DatagramSubscribe
from gateways.datagrams.node_context import NodeContext
from gateways.datagrams.node_events import Arrived
from gateways.datagrams.proofs import Proofs
from gateways.datagrams.subscribers import DatagramPeer
from gateways.datagrams.subscribing import DatagramSubscriptions
from tests.gateways.datagrams import test_deliveries as _D
from tests.gateways.datagrams import test_sealed as _S
from tests.gateways.datagrams import test_tree as _T
from tests.mutants.seeded import SeededBug

__all__ = ["DATAGRAMS"]

SEND = Deliveries.send
DEVICE = DatagramSubscriptions._handle_device


def _wait_for_nobody(
    self: Deliveries, now: float, peer: DatagramPeer, message: DatagramPublish, qos: int, waiting: PendingDelivery
) -> Datagram | None:
    return SEND(self, now, peer, message, 0 * qos, waiting)


def _prepare_nothing(_self: DatagramSubscriptions, _now: float, child: Child) -> None:
    child.rest.clear()


def _take_all_for_keep_open(
    self: DatagramSubscriptions, now: float, arrived: Arrived, wanted: DatagramSubscribe
) -> None:
    DEVICE(self, now, arrived, msgspec.structs.replace(wanted, keep_open=True))


def _wider_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealed, "REPLAY_WINDOW", sealed.REPLAY_WINDOW + 1)


DATAGRAMS: tuple[SeededBug, ...] = (
    SeededBug(
        "a parent stops before the child has the subscriptions",
        "gateways/datagrams/subscribing.py Subscribing.prepare",
        lambda patch: patch.setattr(DatagramSubscriptions, "prepare", _prepare_nothing),
        _T.test_tree_joined_child_serves_existing_subscribers,
        "test_tree_joined_child_serves_existing_subscribers",
    ),
    SeededBug(
        "a node below answers for all",
        "gateways/datagrams/subscribing.py Subscribing._handle_device",
        lambda patch: patch.setattr(DatagramSubscriptions, "_handle_device", _take_all_for_keep_open),
        _T.test_tree_node_below_answers_keep_open_only,
        "test_tree_node_below_answers_keep_open_only",
    ),
    SeededBug(
        "the lease is not checked",
        "gateways/datagrams/node_context.py Parts.holds",
        lambda patch: patch.setattr(NodeContext, "holds", lambda _self, _now: True),
        _T.test_tree_partitioned_child_stops_deciding,
        "test_tree_partitioned_child_stops_deciding",
    ),
    SeededBug(
        "a message is answered before its subscribers have",
        "gateways/datagrams/deliveries.py Deliveries.send",
        lambda patch: patch.setattr(Deliveries, "send", _wait_for_nobody),
        _T.test_tree_lossy_network_delivers_all,
        "test_tree_lossy_network_delivers_all",
    ),
    SeededBug(
        "every cookie is believed",
        "gateways/datagrams/proofs.py Proofs.is_valid",
        lambda patch: patch.setattr(Proofs, "is_valid", lambda _self, _endpoint, _cookie, _now: True),
        _T.test_tree_unproved_address_is_not_amplified,
        "test_tree_unproved_address_is_not_amplified",
    ),
    SeededBug(
        "the replay window is one too wide",
        "gateways/datagrams/sealed.py REPLAY_WINDOW",
        _wider_window,
        _S.test_sealed_replayed_or_modified_datagram_is_dropped,
        "test_sealed_replayed_or_modified_datagram_is_dropped",
    ),
    SeededBug(
        "nonces of sealed devices are forgotten at once",
        "gateways/datagrams/sealed.py NONCE_S",
        lambda patch: patch.setattr(sealed, "NONCE_S", -1.0),
        _S.test_sealed_repeated_open_creates_no_session,
        "test_sealed_repeated_open_creates_no_session",
    ),
    SeededBug(
        "a subscriber that answers other messages is removed for one",
        "gateways/datagrams/deliveries.py Deliveries.record_received",
        lambda patch: patch.setattr(Deliveries, "record_received", lambda _self, _now, _endpoint: None),
        _D.test_deliveries_lossy_subscriber_receives_all,
        "test_deliveries_lossy_subscriber_receives_all",
    ),
    SeededBug(
        "all messages of a window wait longer and longer",
        "gateways/datagrams/device.py Device._is_probe",
        lambda patch: patch.setattr(Device, "_is_probe", lambda _self, _question: False),
        _T.test_device_resumes_soon_after_node_restart,
        "test_device_resumes_soon_after_node_restart",
    ),
)
