"""Interpreter of the Raft scripts: text files of commands and expected states, after etcd's data-driven tests.

A script is a list of blocks: commands, a line ``----``, the expected output, an empty line. Without a command nothing
changes: messages wait until ``deliver``, time advances by ``tick``, ``manual`` disks sync by ``sync``.
``RAFT_SCRIPTS_REWRITE=1`` writes the actual output into the file; check the difference before you commit it.

Commands (peers are single words):
    group a b c | log a 1,1,4 term=5 vote=b commit=1 | snapshot_at a 3 | start | learners d (empty, not in the group)
    tick a (to its deadline) | heartbeat a | wait 0.5 | deliver [a b] | drop [a b] | duplicate a b | cut a b | heal
    propose a text | read a | transfer a b | change a add_learner d | compact a | manual a | sync a
    run a 3 (heartbeats) | deliver_first a b | auto a | batch 1
    crash a | restart a | wipe a | state [a ...] | messages | logs
"""

import math
import random
from collections.abc import Callable
from pathlib import Path

from router.raft.core import RaftCore
from router.raft.events import (
    ChangeMembership,
    Event,
    HardState,
    Persisted,
    Propose,
    RaftConfig,
    RaftInvariantBroken,
    RaftReady,
    RaftTick,
    ReadIndexEvent,
    Receive,
    Snapshot,
    SnapshotTaken,
    TransferLeadership,
)
from router.raft.messages import Configuration, LogEntry, RaftMessage
from tests.router.raft.model_disk import ModelDisk

__all__ = ["ScriptRunner", "parse", "run_script"]


class _Peer:
    def __init__(self, name: str, storage_id: int) -> None:
        self.name = name
        self.disk = ModelDisk(storage_id)
        self.core: RaftCore | None = None
        self.manual = False
        self.queue: list[RaftReady] = []
        self.life = 0
        self.deadline = math.inf


class ScriptRunner:
    """One script's group; ``command`` runs a line and returns its output."""

    def __init__(self, core_class: type[RaftCore] = RaftCore) -> None:
        self.core_class = core_class
        self.now = 0.0
        self.peers: dict[str, _Peer] = {}
        self.voters: tuple[str, ...] = ()
        self.wire: list[RaftMessage] = []
        self.cuts: set[frozenset[str]] = set()
        self.out: list[str] = []
        self.contexts = 0
        self.storage_ids = 100
        self.batch = 512

    def command(self, line: str) -> None:
        """Run one command."""
        word, *arguments = line.split()
        run: Callable[..., None] = getattr(self, f"do_{word}")
        run(*arguments)

    # Set-up

    def do_group(self, *names: str) -> None:
        self.voters = names
        for name in names:
            self._add(name)

    def do_learners(self, *names: str) -> None:
        for name in names:
            self._add(name)
            self._start(self.peers[name])

    def _add(self, name: str) -> None:
        self.storage_ids += 1
        self.peers[name] = _Peer(name, self.storage_ids)

    def do_log(self, name: str, terms: str, *settings: str) -> None:
        """Write a log with these terms to a stopped peer."""
        options = dict(setting.split("=") for setting in settings)
        disk = self.peers[name].disk
        each = [int(term) for term in terms.split(",") if term and term != "-"]
        disk.entries = [LogEntry(at, term, "normal", b"%d.%d" % (at, term)) for at, term in enumerate(each, 1)]
        disk.hard_state = HardState(int(options.get("term", each[-1] if each else 0)), options.get("vote"))

    def do_snapshot_at(self, name: str, index: str, term: str = "") -> None:
        """Write a snapshot to a stopped peer's disk: of its log, or alone if a term is given."""
        disk = self.peers[name].disk
        members = Configuration({peer: self.peers[peer].disk.storage_id for peer in self.voters})
        at = int(index)
        known = int(term) if term else disk.entries[at - 1].term
        if term:
            disk.entries = []
        disk.save_snapshot(Snapshot(at, known, members, b"state at %d" % at))

    def do_start(self) -> None:
        for name in self.voters:
            self._start(self.peers[name])

    def do_restart(self, name: str) -> None:
        self._start(self.peers[name])

    def _start(self, peer: _Peer) -> None:
        peer.life += 1
        config = RaftConfig(
            id=peer.name,
            voters=self.voters if peer.name in self.voters else (),
            storage_ids={name: 101 + at for at, name in enumerate(self.voters)},
            election_timeout_s=1.0,
            heartbeat_s=0.2,
            trailing_entries=0,
            max_entries_per_append=self.batch,
            snapshot_chunk_bytes=8,
        )
        peer.queue = []
        peer.core = self.core_class(config, peer.disk.load(), random.Random(peer.name), peer.life)
        # The first event only draws the deadline.
        peer.deadline = peer.core.handle(self.now, SnapshotTaken(0, b"")).next_deadline

    def do_crash(self, name: str) -> None:
        self.peers[name].core = None

    def do_wipe(self, name: str) -> None:
        self.storage_ids += 1
        self.peers[name].core = None
        self.peers[name].disk.lose_everything(self.storage_ids)

    def do_manual(self, name: str) -> None:
        self.peers[name].manual = True

    def do_auto(self, name: str) -> None:
        self.peers[name].manual = False

    def do_batch(self, entries: str) -> None:
        """Entries per append, for peers started later."""
        self.batch = int(entries)

    # Time and events

    def do_wait(self, seconds: str) -> None:
        self.now += float(seconds)

    def do_tick(self, name: str) -> None:
        self.now = max(self.now, self.peers[name].deadline)
        self._step(name, RaftTick())

    def do_heartbeat(self, name: str) -> None:
        self.do_tick(name)

    def do_run(self, name: str, heartbeats: str) -> None:
        """Run this number of heartbeats of a leader, with all messages delivered in between."""
        for _ in range(int(heartbeats)):
            self.do_tick(name)
            self.do_deliver()

    def do_propose(self, name: str, text: str) -> None:
        self._refusal(name, self._step(name, Propose(text.encode())))

    def do_read(self, name: str) -> None:
        self.contexts += 1
        self._step(name, ReadIndexEvent(self.contexts))

    def do_transfer(self, name: str, to: str) -> None:
        self._refusal(name, self._step(name, TransferLeadership(to)))

    def do_change(self, name: str, action: str, peer: str) -> None:
        self._refusal(name, self._step(name, ChangeMembership(action, peer)))  # type: ignore[arg-type]

    def do_compact(self, name: str) -> None:
        peer = self.peers[name]
        assert peer.core is not None
        index = peer.core.last_applied
        snapshot = Snapshot(
            index, peer.core.log.term_at(index) or 0, peer.core.configuration_at(index), b"state at %d" % index
        )
        peer.disk.save_snapshot(snapshot)
        self._step(name, SnapshotTaken(index, snapshot.data))

    def _refusal(self, name: str, ready: RaftReady) -> None:
        if ready.refused:
            self.out.append(f"{name} refuses: {ready.refused}")

    def _step(self, name: str, event: Event) -> RaftReady:
        peer = self.peers[name]
        if peer.core is None:
            return RaftReady(0)
        ready = peer.core.handle(self.now, event)
        peer.deadline = ready.next_deadline
        for entry in ready.committed:
            if entry.kind == "normal" and not entry.data[:1].isdigit():
                self.out.append(f"{name} applies {entry.index}: {entry.data.decode()}")
        for read in ready.read_states:
            self.out.append(f"{name} read {int(read.context)}: {'refused' if read.index < 0 else read.index}")
        self.wire.extend(ready.early_messages)
        peer.queue.append(ready)
        if not peer.manual:
            self.do_sync(name)
        return ready

    def do_sync(self, name: str) -> None:
        peer = self.peers[name]
        batch, peer.queue = peer.queue, []
        if not batch:
            return
        peer.disk.begin(batch)
        peer.disk.finish()
        for ready in batch:
            self.wire.extend(ready.messages)
        if any(ready.must_persist for ready in batch):
            self._step(name, Persisted(batch[-1].number))

    # Network

    def do_deliver(self, *link: str) -> None:
        """Deliver queued messages; without a link, until the queues are empty."""
        for _ in range(200):
            now, self.wire = self._take(link)
            for message in now:
                peer = self.peers.get(message.to)
                if peer is not None and peer.core is not None and {message.sender, message.to} not in self.cuts:
                    self._step(message.to, Receive(message))
            if link or not self.wire:
                return
        self.out.append("no end of messages")

    def _take(self, link: tuple[str, ...]) -> tuple[list[RaftMessage], list[RaftMessage]]:
        chosen = [message for message in self.wire if not link or (message.sender, message.to) == link]
        return chosen, [message for message in self.wire if message not in chosen]

    def do_deliver_first(self, sender: str, to: str) -> None:
        """Deliver only the oldest message of a link."""
        message = self._take((sender, to))[0][0]
        self.wire.remove(message)
        self._step(to, Receive(message))

    def do_drop(self, *link: str) -> None:
        _, self.wire = self._take(link)

    def do_duplicate(self, *link: str) -> None:
        chosen, _ = self._take(link)
        self.wire.extend(chosen)

    def do_cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))

    def do_heal(self) -> None:
        self.cuts.clear()

    # Output

    def do_messages(self) -> None:
        for message in self.wire:
            fields = {
                name: getattr(message, name)
                for name in message.__struct_fields__[6:]
                if name not in ("round", "configuration", "incarnation")
            }
            if "entries" in fields:
                fields["entries"] = ",".join(f"{entry.index}.{entry.term}" for entry in fields["entries"])
            text = " ".join(f"{name}={value}" for name, value in fields.items())
            self.out.append(
                f"{message.sender}->{message.to} {type(message).__name__} term={message.term} {text}".rstrip()
            )

    def do_state(self, *names: str) -> None:
        for name in names or self.peers:
            core = self.peers[name].core
            if core is None:
                self.out.append(f"{name} down")
                continue
            self.out.append(
                f"{name} {core.role.value} term={core.term} vote={core.voted_for or '-'} leader={core.leader or '-'} "
                f"last={core.log.last_index}.{core.log.last_term} commit={core.commit_index}"
            )

    def do_logs(self, *names: str) -> None:
        for name in names or self.peers:
            core = self.peers[name].core
            if core is not None:
                terms = ",".join(str(entry.term) for entry in core.log.entries)
                voters = " ".join(core.configuration.voters)
                learners = "".join(f" +{peer}" for peer in core.configuration.learners)
                self.out.append(f"{name} base={core.log.base_index} terms={terms} voters={voters}{learners}")


def parse(text: str) -> list[tuple[list[str], list[str]]]:
    """Return blocks of (commands, expected output)."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        at = lines.index("----") if "----" in lines else len(lines)
        blocks.append((lines[:at], lines[at + 1 :]))
    return blocks


def run_script(path: Path, core_class: type[RaftCore] = RaftCore, rewrite: bool = False) -> list[str]:
    """Run a script; return the differences, none if it passed."""
    runner = ScriptRunner(core_class)
    differences: list[str] = []
    written: list[str] = []
    for commands, expected in parse(path.read_text()):
        runner.out = []
        for line in commands:
            if line and not line.startswith("#"):
                try:
                    runner.command(line)
                except RaftInvariantBroken as error:
                    runner.out.append(f"invariant broken: {error}")
        if runner.out != expected:
            differences.append(f"{path.name}: {commands[-1]}\n  expected {expected}\n  seen     {runner.out}")
        written.append("\n".join([*commands, *(["----", *runner.out] if runner.out else [])]))
    if rewrite:
        path.write_text("\n\n".join(written) + "\n")
    return differences
