"""Messages that brokers on one node lose when they are killed: record and check, as a table for the manual.

Starts each broker in its own folder on a free loopback port, runs workloads of ``stratamq record`` against it, kills
and restarts it with -9 every few seconds, and checks the histories. Mosquitto is taken from the system; aedes
from a folder with ``npm install aedes`` (``--aedes``). Brokers that are not installed are skipped, with a message.

    python -m bench.compare_brokers --runs 3 --seconds 6 --aedes ~/aedes
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trio

from stratamq.history.check import judge
from stratamq.history.checkers.unavailability import gaps_after_faults
from stratamq.history.history import RunHistory, parse_history
from stratamq.history.operations import Kind
from stratamq.history.recorder import RecordSettings, record
from stratamq.history.run import Run
from tests.free_ports import free_port

WORKLOADS = ("queue", "routes", "takeover", "retained", "wills", "shared")
KILL_EVERY_S = (1.0, 2.5)
DOWN_S = (0.0, 0.3)
START_TIMEOUT_S = 10.0
AEDES_SCRIPT = """
const aedes = require('aedes');
const net = require('net');
(async () => {
  const broker = aedes.Aedes && aedes.Aedes.createBroker ? await aedes.Aedes.createBroker() : aedes();
  net.createServer(broker.handle).listen(Number(process.argv[2]), '127.0.0.1');
})();
"""
COLUMNS = {
    "lost": "accepted, then lost",
    "duplicate": "QoS 2 twice",
    "order": "out of order",
    "session_present": "sessions lost",
    "retained_register": "retained wrong",
    "will_once": "wills missing or twice",
    "shared_group": "shared lost or twice",
    "aborted_reads": "altered or refused",
}


FAIRNESS = """Each pair of rows is the same broker without and with kills; "9 of 700" is 9 findings among 700
things checked. A kill is harder than what these brokers promise to survive: Mosquitto writes its
database at intervals or after a number of changes and acknowledges before that; aedes keeps
everything in memory unless it is given a persistence module. MQTT asks of no broker that wills and
sessions outlive its process. Findings without kills are how a broker differs from the specification
or from the promises checked here; "sessions lost" counts Session Present 0 for a session without
subscriptions too, which MQTT 3.1.1 section 3.1.2.4 counts as a session."""


@dataclass(frozen=True)
class Contender:
    """One broker in one configuration."""

    name: str
    version: str
    configuration: str
    command: tuple[str, ...]  # {folder} and {port} are filled in
    files: dict[str, str] = field(default_factory=dict, hash=False)
    protocol_version: int = 0  # 0: both versions; shared subscriptions are MQTT 5


class Broker:
    """A running contender."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        self.port = free_port()
        self._process: trio.Process | None = None
        values = {"folder": str(folder), "port": str(self.port)}
        self._command = [part.format(**values) for part in contender.command]
        for name, text in contender.files.items():
            (folder / name).write_text(text.replace("{folder}", str(folder)).replace("{port}", str(self.port)))

    async def start(self) -> None:
        """Start, and wait for the port to open."""
        self._process = await trio.lowlevel.open_process(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with trio.fail_after(START_TIMEOUT_S):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                except OSError:
                    await trio.sleep(0.02)
                    continue
                await stream.aclose()
                return

    async def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            self._process = None


@dataclass
class Result:
    """The results of all runs of one contender."""

    runs: int = 0
    kills: int = 0
    accepted: int = 0
    found: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)

    def add(self, history: RunHistory) -> None:
        verdict = judge(history)
        self.runs += 1
        self.kills += sum(mark.kind is Kind.KILL for mark in history.marks)
        self.accepted += sum(op.ok and op.invoke.qos > 0 for op in history.of_kind(Kind.PUBLISH))
        for name, report in verdict.reports.items():
            self.found[name] += report.found
            self.checked[name] += report.checked
        self.waits_s += [gap.length_s for gap in gaps_after_faults(history) if gap.kind is Kind.CONNECT]


async def run_contender(contender: Contender, options: argparse.Namespace, kills: bool) -> Result:
    """Run every workload with every seed, one after the other: two brokers would share the processor."""
    result = Result()
    for seed in range(options.seed, options.seed + options.runs):
        for workload in WORKLOADS:
            if workload == "shared" and contender.protocol_version == 4:
                continue
            with tempfile.TemporaryDirectory() as folder:
                broker = Broker(contender, Path(folder))
                await broker.start()
                try:
                    result.add(await _record(broker, contender, workload, seed, options, kills))
                finally:
                    with trio.CancelScope(shield=True):
                        await broker.kill()
            print(f"  {contender.name} {contender.configuration}: {workload} seed {seed} done", flush=True)
    return result


async def _record(
    broker: Broker, contender: Contender, workload: str, seed: int, options: argparse.Namespace, kills: bool
) -> RunHistory:
    rng = random.Random(f"{seed}/{workload}/kills")

    async def keep_killing(run: Run) -> None:
        with trio.move_on_after(options.seconds):
            while kills:
                await trio.sleep(rng.uniform(*KILL_EVERY_S))
                with trio.CancelScope(shield=True):  # the quiet phase finds the broker up
                    run.mark(Kind.KILL, contender.name)
                    await broker.kill()
                    await trio.sleep(rng.uniform(*DOWN_S))
                    await broker.start()
                    run.mark(Kind.RESTART, contender.name)

    settings = RecordSettings(
        brokers=(("127.0.0.1", broker.port),),
        workload=workload,
        seconds=options.seconds,
        seed=seed,
        drain_s=3.0,
        operations_per_s=30.0,
        protocol_version=contender.protocol_version,
        prepare_s=3.0,
        software=f"{contender.name} {contender.version}",
    )
    sink = io.BytesIO()
    await record(settings, sink, keep_killing)
    if options.keep is not None:
        how = "kills" if kills else "calm"
        name = f"{contender.name}-{contender.configuration}-{workload}-{seed}-{how}.jsonl".replace(" ", "_")
        (options.keep / name.replace("/", "_")).write_bytes(sink.getvalue())
    return parse_history(sink.getvalue())


def table(results: dict[tuple[Contender, bool], Result]) -> str:
    """Return the Markdown table: findings, of how many checked; without kills first, to compare with."""
    head = ["broker", "configuration", "kills", "accepted QoS 1, 2", *COLUMNS.values(), "reconnected after (worst)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (contender, _), result in results.items():
        cells = [f"{contender.name} {contender.version}", contender.configuration, str(result.kills)]
        cells.append(str(result.accepted))
        cells += [f"{result.found[name]} of {result.checked[name]}" for name in COLUMNS]
        cells.append(f"{max(result.waits_s):.2f} s" if result.waits_s else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def contenders(options: argparse.Namespace) -> list[Contender]:
    """Return the installed contenders; print the missing ones."""
    found = [*_mosquittos(), *_aedes(options.aedes)]
    if options.only:
        found = [c for c in found if options.only in f"{c.name} {c.configuration}"]
    return found


def _mosquittos() -> list[Contender]:
    executable = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if executable is None:
        print("Mosquitto is not installed: left out")
        return []
    words = subprocess.run([executable, "-h"], capture_output=True, text=True, check=False).stdout.split()
    # user root: started by root it would otherwise drop its rights, and could not write its database here.
    common = "listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nlog_type error\nuser root\n"
    persistent = common + "persistence true\npersistence_location {folder}/\n"
    settings = {
        "persistence false": common + "persistence false\n",
        "persistence true, autosave_interval 1800 (default)": persistent,
        "persistence true, autosave_on_changes true, autosave_interval 1": persistent
        + "autosave_on_changes true\nautosave_interval 1\n",
    }
    command = (executable, "-c", "{folder}/mosquitto.conf")
    return [Contender("Mosquitto", words[2], name, command, {"mosquitto.conf": t}) for name, t in settings.items()]


def _aedes(folder: Path | None) -> list[Contender]:
    node = shutil.which("node")
    manifest = folder / "node_modules/aedes/package.json" if folder is not None else None
    if node is None or manifest is None or not manifest.exists():
        print("aedes is not installed (npm install aedes in a folder, then --aedes FOLDER): left out")
        return []
    version = str(json.loads(manifest.read_text())["version"])
    (manifest.parents[2] / "stratamq_compare.cjs").write_text(AEDES_SCRIPT)
    command = (node, str(manifest.parents[2] / "stratamq_compare.cjs"), "{port}")
    return [Contender("aedes", version, "in memory (default), MQTT 3.1.1", command, protocol_version=4)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2, help="seeds per workload")
    parser.add_argument("--seconds", type=float, default=5.0, help="of work per run, before the quiet phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--aedes", type=Path, help="folder in which aedes was installed by npm")
    parser.add_argument("--keep", type=Path, help="folder to keep the histories in")
    parser.add_argument("--only", default="", help="only contenders whose name has this in it")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> None:
    results: dict[tuple[Contender, bool], Result] = {}
    for contender in contenders(options):
        for kills in (False, True):
            results[contender, kills] = await run_contender(contender, options, kills)
    print(f"\nSeeds {options.seed} to {options.seed + options.runs - 1}, workloads {', '.join(WORKLOADS)}, ", end="")
    print(f"{options.seconds:g} s of work each, kill -9 every {KILL_EVERY_S[0]:g} to {KILL_EVERY_S[1]:g} s.\n")
    print(table(results))
    print("\n" + FAIRNESS)


if __name__ == "__main__":
    trio.run(main, _options())
