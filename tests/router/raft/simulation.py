"""One seed of a simulated Raft group: the load, the faults, and the checks.

*Safety* mode injects faults throughout and checks invariants only. *Liveness* mode injects faults for a while, then
keeps a healthy majority and one permanent fault (a dead, half-connected or slow-disk peer, links that never heal or
that flap), restores the timing assumptions, and requires progress and a stable leader.
"""

import random
from typing import Literal

from router.raft.core import RaftCore
from router.raft.events import ChangeMembership, Propose, RaftRole, ReadIndexEvent, TransferLeadership
from tests.router.raft.invariants import Violation
from tests.router.raft.knobs import Knobs, Mode, draw_knobs
from tests.router.raft.model_disk import ModelDisk
from tests.router.raft.simulated_group import SimPeer, SimulatedGroup

__all__ = ["Simulation", "Violation"]

LEADER_CHANGES_MAX = 2  # in the watched window of liveness mode, after the grace period
GRACE_TIMEOUTS = 25  # election timeouts until the group must have settled
WATCH_TIMEOUTS = 50  # length of the watched window
GAP_TIMEOUTS = 10  # longest time in it without progress for a waiting client


class Simulation(SimulatedGroup):
    """A run; everything follows from the seed, the mode and the core's class."""

    def __init__(
        self,
        seed: int,
        mode: Mode = "safety",
        core_class: type[RaftCore] = RaftCore,
        disk_class: type[ModelDisk] = ModelDisk,
        knobs: Knobs | None = None,
    ) -> None:
        super().__init__(random.Random(f"{mode} {seed}"), knobs or draw_knobs(seed, mode), core_class, disk_class)
        self.mode = mode
        self.permanent = ""
        self.waiting_since: float | None = None  # start of a client's wait for a write
        self.gap_max = 0.0
        self._contexts = 0
        self._values = 0

    def run(self) -> None:
        """Run the whole seed.

        Raises:
            Violation: An invariant broke, or the group did not live.
        """
        self.begin()
        self.run_until(self.knobs.duration_s)
        if self.mode == "liveness":
            self._demand_life()

    def begin(self) -> None:
        """Start all peers, the load and the faults."""
        for peer in self.peers.values():
            self.start(peer)
        knobs = self.knobs
        self._propose()
        self.every(knobs.read_every_s, self._read)
        self.every(knobs.crash_every_s, self._crash_any)
        self.every(knobs.cut_every_s, self._cut_any)
        self.every(knobs.change_every_s, self._change_any)
        self.every(knobs.transfer_every_s, self._transfer_any)
        self.every(knobs.wipe_every_s, self._wipe_any)

    # Load

    def leaders(self) -> list[SimPeer]:
        """Return the peers in leader role; deposed ones are included."""
        return [peer for peer in self.peers.values() if peer.core is not None and peer.core.role is RaftRole.LEADER]

    def _propose(self) -> None:
        self.at(self.now + self.rng.expovariate(1 / self.knobs.propose_every_s), self._propose)
        if self.waiting_since is None:
            self.waiting_since = self.now
            self.at(self.now + self.knobs.election_timeout_s, self._try_again, self.now)
        self._try()

    def _try_again(self, waiting_since: float) -> None:
        """Repeat an unanswered client's request; an idle client must not count as missing progress."""
        if self.waiting_since == waiting_since:
            self.at(self.now + self.knobs.election_timeout_s, self._try_again, waiting_since)
            self._try()

    def _try(self) -> None:
        leaders = self.leaders()
        if not leaders:
            return
        peer = self.rng.choice(leaders)
        for _ in range(self.knobs.propose_batch):
            self._values += 1
            if peer.core is None:
                return
            term = peer.core.term
            ready = self.step(peer, Propose(b"%d" % self._values))
            if ready is not None and ready.proposed is not None:
                peer.mine[ready.proposed] = term

    def acknowledged(self) -> None:
        if self.waiting_since is not None:
            self.gap_max = max(self.gap_max, self.now - self.waiting_since)
        self.waiting_since = None

    def _read(self) -> None:
        peer = self.rng.choice(list(self.peers.values()))
        if peer.core is None:
            return
        self._contexts += 1
        peer.reads[self._contexts] = self.invariants.acked_index
        self.step(peer, ReadIndexEvent(self._contexts))

    # Faults

    def _crash_any(self) -> None:
        if self.calm:
            return
        every = list(self.peers.values())
        some = self.leaders() if self.rng.random() < 0.4 else [self.rng.choice(every)]
        for peer in every if self.rng.random() < self.knobs.crash_all else some:
            self.crash(peer)

    def _cut_any(self) -> None:
        """Isolate a peer, split the group, or cut single directed links, for a while."""
        if self.calm:
            return
        rng, names = self.rng, list(self.peers)
        kind = rng.randrange(3)
        if kind == 0:
            one = rng.choice(names)
            links = [(one, other) for other in names] + [(other, one) for other in names]
        elif kind == 1:
            side = {name for name in names if rng.random() < 0.5}
            links = [(a, b) for a in names for b in names if (a in side) != (b in side)]
        else:
            links = [(a, b) for a in names for b in names if a != b and rng.random() < 0.3]
        self.down_links.update(links)
        self.at(self.now + rng.expovariate(1 / self.knobs.cut_s), self.down_links.difference_update, links)

    def _change_any(self) -> None:
        leaders = self.leaders()
        if not leaders:
            return
        action: Literal["add_learner", "promote", "remove", "replace"]
        action = self.rng.choice(("add_learner", "promote", "promote", "remove", "replace", "replace"))
        self.step(self.rng.choice(leaders), ChangeMembership(action, self.rng.choice(list(self.peers))))

    def _transfer_any(self) -> None:
        leaders = self.leaders()
        if leaders and not self.calm:
            self.step(self.rng.choice(leaders), TransferLeadership(self.rng.choice(self.voters)))

    def _wipe_any(self) -> None:
        """Restart a peer with an empty disk under its old name.

        The first peer is exempt: if every disk of the bootstrap is lost, the group cannot detect that this is not the
        first start.
        """
        peer = self.rng.choice([peer for peer in self.peers.values() if peer.name != self.voters[0]])
        self.crash(peer)
        peer.disk.lose_everything(self.new_storage_id())

    # Liveness

    def _demand_life(self) -> None:
        knobs, timeout = self.knobs, self.knobs.election_timeout_s
        self.calm = True
        knobs.delay_s = min(knobs.delay_s, timeout / 16)  # round trips below a quarter of the timeout
        knobs.sync_s = min(knobs.sync_s, timeout / 50)
        # a batch of one over that round trip catches up slowly, so the load must be limited
        knobs.propose_every_s = max(knobs.propose_every_s, timeout / 4) if self.rng.random() < 0.8 else timeout * 4
        self.down_links.clear()
        self._break_for_ever()
        for peer in self.peers.values():
            self.at(self.now, self.start, peer)
        self.run_until(self.now + timeout * (GRACE_TIMEOUTS + self._backlog() / 4))
        self.gap_max = 0.0
        elections_before = self.invariants.elections
        self.run_until(self.now + timeout * WATCH_TIMEOUTS)
        self.acknowledged()
        if self.gap_max > timeout * GAP_TIMEOUTS:
            raise Violation(f"no progress for {self.gap_max / timeout:.1f} election timeouts; {self.permanent}")
        changes = self.invariants.elections - elections_before
        if changes > LEADER_CHANGES_MAX:
            raise Violation(f"{changes} leader changes in {WATCH_TIMEOUTS} election timeouts; {self.permanent}")

    def _backlog(self) -> int:
        """Number of sequential appends for the peer that lags most."""
        lasts = [
            len(peer.disk.entries) + (peer.disk.snapshot.index if peer.disk.snapshot else 0)
            for peer in self.peers.values()
        ]
        return min(200, (max(lasts) - min(lasts)) // self.knobs.max_entries_per_append)

    def _break_for_ever(self) -> None:
        """Inject one permanent fault that leaves a fully connected majority."""
        rng = self.rng
        leaders = [peer.name for peer in self.leaders()]
        name = rng.choice(leaders) if leaders and rng.random() < 0.5 else rng.choice(self.voters)
        others = [other for other in self.voters if other != name]
        kind = rng.choice(("dead", "deaf", "mute", "mesh", "oneway", "flap", "stuck"))
        self.permanent = f"{kind} {name}"
        if kind == "dead":
            self.dead.add(name)
            self.crash(self.peers[name])
        elif kind == "deaf":
            self.down_links.update((other, name) for other in others)
        elif kind == "mute":
            self.down_links.update((name, other) for other in others)
        elif kind == "stuck":
            self.stuck.add(name)
        elif kind == "flap":
            self._flap(name, others)
        else:
            for other in rng.sample(others, rng.randint(1, len(others) - 1)):
                self.down_links.add((name, other))
                if kind == "mesh":
                    self.down_links.add((other, name))

    def _flap(self, name: str, others: list[str]) -> None:
        """Disconnect and reconnect repeatedly; each phase is longer than an election."""
        links = {(name, other) for other in others} | {(other, name) for other in others}
        if links <= self.down_links:
            self.down_links -= links
        else:
            self.down_links |= links
        self.at(self.now + self.knobs.election_timeout_s * 4, self._flap, name, others)
