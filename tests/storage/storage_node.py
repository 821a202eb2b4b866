"""A storage process of the simulation: the cluster carries its frames, and its disk may hang."""

import random
from collections.abc import Iterable
from typing import Protocol

from storage.event_queue import COPIES_MAX
from storage.ready import StorageReady
from storage.state.settings import PartitionSettings
from tests.simulation.model_store import ModelSync
from tests.simulation.process import World
from tests.simulation.storage_process import DiskKnobs, StorageProcess
from wire.messages.control import decode_controls, encode_control
from wire.messages.frames import FrameKind
from wire.messages.hello import TIER_STORAGE, PeerKey

__all__ = ["STEP_S", "StorageNode"]

STEP_S = 0.01  # of an iteration, and of a sync
DISK = DiskKnobs(sync_s=0.0, delay_s=0.0)


class Around(Protocol):
    """The cluster as its nodes need it."""

    def send(self, source: PeerKey, target: str, kind: int, payload: bytes) -> None:
        """Send a frame."""

    def restart(self, name: str) -> None:
        """Begin the next incarnation of a node."""


class StorageNode(StorageProcess):
    """One storage node over its lives; the cluster carries its frames."""

    copies = (COPIES_MAX,)

    def __init__(self, world: World, around: Around, name: str, settings: PartitionSettings, seed: int) -> None:
        super().__init__(world, name, [], settings, DISK, f"{seed}/disk/{name}", 0.0)
        self._around = around
        self.slow_s = STEP_S
        self.held: list[ModelSync] = []
        self._disk_slow = False

    def begin_links(self, incarnation: int, rng: random.Random) -> None:
        """Begin an incarnation; the cluster manages links."""
        del rng
        self.incarnation = incarnation
        self.key = PeerKey(self.node, TIER_STORAGE, incarnation)
        self.held.clear()
        self._disk_slow = False
        self.begin()

    def receive(self, peer: PeerKey, kind: int, payload: bytes) -> None:
        """Queue a frame for the next iteration."""
        self.on_frame(peer, kind, payload)
        self.poke()

    def linked(self, peer: PeerKey, *, up: bool) -> None:
        """Record that a link is up or down."""
        (self.on_up if up else self.on_down)(peer)
        self.poke()

    def read_links(self) -> None:
        """Frames come through ``receive``."""

    def flush_links(self) -> None:
        """Frames leave at once."""

    def set_names(self, nodes: Iterable[str]) -> None:
        """No node is forgotten."""

    def set_peers(self, peers: dict[str, tuple[str, str, int]]) -> None:
        """No node is dialled."""

    def _leave(self, ready: StorageReady) -> None:
        for target, kind, payload in ready.sends:
            # A scripted edge reads one message at a time; whole cores read CONTROLS frames in tests/simulation.
            if kind == FrameKind.CONTROLS:
                for message in decode_controls(payload):
                    self._around.send(self.key, target, FrameKind.CONTROL, encode_control(message))
            else:
                self._around.send(self.key, target, kind, payload)

    def ended(self) -> None:
        """Begin the next incarnation at once."""
        self.later(0.0, self._around.restart, self.node)

    failed = ended

    @property
    def disk_slow(self) -> bool:
        """Whether no sync ends."""
        return self._disk_slow

    @disk_slow.setter
    def disk_slow(self, slow: bool) -> None:
        self._disk_slow = slow
        while self.held and not slow:
            self.later(STEP_S, self._synced, self.held.pop(0))

    def _synced(self, ticket: ModelSync) -> None:
        if self._disk_slow:
            self.held.append(ticket)
        else:
            super()._synced(ticket)

    @property
    def busy(self) -> bool:
        """Whether events or writes are pending."""
        return bool(self._events or self._group.durable < self._group.submitted)
