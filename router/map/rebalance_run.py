"""The leader's execution of a rebalance: it proposes the next steps of the map's job within the throttle.

It holds no essential state: progress is derived from the map, and the plan is in the Raft log. So a new leader
continues. Sans-IO; ``router/placement/plan.py`` computes the steps.
"""

from collections.abc import Callable, Iterator

from router.map.commands import Command, PlacePartitions, PlaceShards, SetRebalance
from router.map.leases import LeaseTable
from router.map.machine import MapMachine
from router.placement.plan import Move, NextMoveStep, RebalanceJob, next_step, step_back
from wire.messages.cluster_map import ClusterMap

__all__ = ["RebalanceRunner", "reached"]

STEP_S = 0.05  # between two checks
REPEAT_S = 1.0  # before a step that the map does not contain is proposed again
PARTITIONS_AT_A_TIME = 4  # more copies at once are not faster: they share the source's disk and link
EMPTY_AT_A_TIME = 32  # of an automatic job, which starts with empty partitions
SHARDS_AT_A_TIME = 8  # a moved shard returns no answers until it has collected its senders' reports


class RebalanceRunner:
    """Executes the machine's job while this router leads."""

    def __init__(self, machine: MapMachine, leases: LeaseTable, propose: Callable[[Command], object]) -> None:
        self._machine = machine
        self._leases = leases
        self._propose = propose
        self._next = float("-inf")
        self._proposed: dict[tuple[str, int], tuple[int, float]] = {}  # kind, number -> epoch, time
        self._free_at = float("-inf")  # throttle: earliest start of the next copy
        self._started: set[tuple[int, int]] = set()  # job, partition: started under this leader
        self._ending: tuple[int, float] = (0, 0.0)  # job whose end was proposed, time
        self._watched: tuple[int, float, int] = (0, 0.0, 0)  # job, start of observation, moves done then

    def tick(self, now: float) -> None:
        """Propose due steps."""
        job = self._machine.job
        if job is None or now < self._next or job.state not in ("running", "aborting"):
            return
        self._next = now + STEP_S
        if self._watched[0] != job.number:
            self._watched = (job.number, now, self.done(job))
            self._proposed.clear()
        busy = self._shards(now, job) + self._partitions(now, job)
        if not busy and (self._ending[0] != job.number or now - self._ending[1] > REPEAT_S):
            self._ending = (job.number, now)
            failed = [move for move, step in self._steps(job) if step.verb == "failed"]
            state = "aborted" if job.state == "aborting" else "failed" if failed else "done"
            detail = f"{len(failed)} moves failed: their nodes are gone; plan again" if failed else ""
            self._propose(SetRebalance(job.number, state, detail))

    def _shards(self, now: float, job: RebalanceJob) -> int:
        """Move shards in batches; each batch waits until every live node has acknowledged the one before."""
        cluster_map = self._machine.map
        if job.state == "aborting":
            return 0
        left = {}
        for move in job.plan.moves:
            entry = cluster_map.nodes.get(move.target[0]) if move.kind == "shard" else None
            if entry is not None and entry.alive and cluster_map.shards[move.number].owner == move.source[0]:
                left[move.number] = move.target[0]
        batch = dict(list(left.items())[:SHARDS_AT_A_TIME])
        epochs = {number: cluster_map.shards[number].epoch for number in batch}
        settled = self._leases.settled_epoch(cluster_map) >= cluster_map.epoch
        if batch and settled and all(self._due(now, "shard", number, epoch) for number, epoch in epochs.items()):
            for number, epoch in epochs.items():
                self._proposed["shard", number] = (epoch, now)
            self._propose(PlaceShards(batch, epochs))
        return len(left)

    def _partitions(self, now: float, job: RebalanceJob) -> int:
        busy = 0
        at_a_time = EMPTY_AT_A_TIME if job.automatic else PARTITIONS_AT_A_TIME
        for move, step in self._steps(job):
            if step.verb in ("done", "failed"):
                continue
            busy += 1
            if busy > at_a_time:
                break
            if step.placement is None or not self._allow_copy(now, job, move, step):
                continue
            epoch = step.placement.epoch - 1
            if self._due(now, "partition", move.number, epoch):
                self._proposed["partition", move.number] = (epoch, now)
                self._propose(PlacePartitions({move.number: step.placement}))
        return busy

    def _allow_copy(self, now: float, job: RebalanceJob, move: Move, step: NextMoveStep) -> bool:
        """Return whether the throttle allows a copy to start now; each start delays the next by its bytes."""
        key = (job.number, move.number)
        if step.verb != "add_joining" or not job.throttle_bytes_s or key in self._started:
            return True
        if now < self._free_at:
            return False
        self._started.add(key)
        self._free_at = max(now, self._free_at) + move.bytes / job.throttle_bytes_s
        return True

    def _due(self, now: float, kind: str, number: int, epoch: int) -> bool:
        known = self._proposed.get((kind, number))
        return known is None or known[0] != epoch or now - known[1] > REPEAT_S

    def _steps(self, job: RebalanceJob) -> Iterator[tuple[Move, NextMoveStep]]:
        """Iterate over the moves of partitions, each with its next step."""
        cluster_map = self._machine.map
        back = job.state in ("aborting", "aborted")
        for move in job.plan.moves:
            if move.kind != "shard":
                step = step_back(cluster_map, move) if back and move.kind != "primary" else None
                yield move, step or (NextMoveStep(verb="done") if back else next_step(cluster_map, move))

    def done(self, job: RebalanceJob) -> int:
        """Return the number of moves that reached their target."""
        cluster_map = self._machine.map
        return sum(1 for move in job.plan.moves if reached(cluster_map, move))

    def moves_pending(self) -> int:
        """Return the number of unfinished moves of the running job."""
        job = self._machine.job
        if job is None or job.state not in ("running", "paused", "aborting"):
            return 0
        return len(job.plan.moves) - self.done(job)

    def status(self, now: float) -> dict[str, object]:
        """Return the job for ``ring status``."""
        job = self._machine.job
        if job is None:
            return {"id": None, "phase": "none", "done": 0, "total": 0}
        done, total = self.done(job), len(job.plan.moves)
        number, since, before = self._watched
        spent = now - since
        rate = (done - before) / spent if number == job.number and spent > 0 and done > before else 0.0
        unfinished = job.state in ("running", "paused", "aborting")
        return {
            "id": job.number,
            "phase": job.state,
            "automatic": job.automatic,
            "done": done,
            "total": total,
            "rate": round(rate, 2) if unfinished else None,
            "eta_s": round((total - done) / rate, 1) if rate and unfinished else None,
            "donors": sorted({name for move in job.plan.moves for name in move.source if name}),
            "recipients": sorted({name for move in job.plan.moves for name in move.target}),
            "bytes": sum(move.bytes for move in job.plan.moves),
            "throttle_bytes_s": job.throttle_bytes_s,
            "errors": [
                f"{move.kind} {move.number}: {step.node} is gone"
                for move, step in self._steps(job)
                if step.verb == "failed"
            ],
            "detail": job.detail,
        }


def reached(cluster_map: ClusterMap, move: Move) -> bool:
    """True if the map shows a move's target."""
    if move.kind == "shard":
        return cluster_map.shards[move.number].owner == move.target[0]
    placement = cluster_map.partitions[move.number]
    same = set(placement.in_sync) == set(move.replicas) and not placement.joining
    return same and placement.primary == move.replicas[0]
