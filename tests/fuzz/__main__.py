"""``python -m tests.fuzz --minutes N [--targets client,...] [--seed n]``: send damaged input to every parser.

Every target gets its share of the time in its own processes. With atheris, coverage guides the first half of the time,
and the second half mutates its findings at random; without it all input is random, and the report states that. The
compiled targets run with bounds checks and the address sanitizer if gcc is installed.
A failure is stored in ``build/fuzz/failures``, belongs into ``tests/fuzz/test_targets.py``, and gives exit code 1.
``--executions N`` ends a process after N executions, or at its share of the minutes.
``--log`` stores the counts, ``--report`` writes them as the table in docs/fuzzing.md.
"""

import argparse
import datetime
import fcntl
import hashlib
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from tests.fuzz import sanitized
from tests.fuzz.one_target import Box
from tests.fuzz.targets import TARGETS, Target

WORK = sanitized.ROOT / "build" / "fuzz"
RESULTS = sanitized.ROOT / "bench" / "results" / "fuzz.jsonl"
START_S = 240.0  # longest time that a process may take beyond its share: importing, and one slow input

__all__ = ["main", "table"]


class Count(msgspec.Struct, frozen=True):
    """Counts of one process."""

    date: str
    target: str
    guided: bool
    sanitized: bool
    seed: int
    seconds: float
    executions: int
    failed: bool


def table(counts: list[Count]) -> str:
    """Return the Markdown table of kept counts."""
    executions: Counter[tuple[str, bool]] = Counter()
    seconds: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for count in counts:
        executions[count.target, count.guided] += count.executions
        seconds[count.target] += count.seconds  # type: ignore[assignment]
        failed[count.target] += count.failed
    lines = ["| target | sanitizer | guided | random | minutes | failures |", "|---|---|---|---|---|---|"]
    for target in TARGETS:
        name = target.name
        clean = any(count.sanitized for count in counts if count.target == name)
        lines.append(
            f"| {name} | {'yes' if clean else 'no'} | {executions[name, True]:,} | {executions[name, False]:,} "
            f"| {seconds[name] / 60:.0f} | {failed[name]} |"
        )
    total = sum(executions.values())
    lines.append(
        f"| all | | {sum(n for (_, g), n in executions.items() if g):,} | "
        f"{sum(n for (_, g), n in executions.items() if not g):,} | {sum(seconds.values()) / 60:.0f} "
        f"| {sum(failed.values())} |"
    )
    return "\n".join([*lines, "", f"{total:,} executions together."])


class Fuzzing:
    """Starts the processes and counts."""

    def __init__(self, options: argparse.Namespace, clean: bool) -> None:
        self._options, self._clean = options, clean
        self._corpus = WORK / "corpus"
        self.failed = 0
        self.total = 0
        (WORK / "failures").mkdir(parents=True, exist_ok=True)

    def run(self, target: Target, guided: bool, seconds: float) -> None:
        """Run one process, and print its counts."""
        clean = self._clean and target.compiled
        box = WORK / f"{target.name}.box"
        command = [sys.executable, "-m", "tests.fuzz.one_target", target.name, "--seconds", f"{seconds:.1f}"]
        command += ["--seed", str(self._options.seed), "--box", str(box), "--corpus", str(self._corpus)]
        command += ["--executions", str(self._options.executions)]
        began = time.monotonic()
        log = WORK / f"{target.name}.log"
        with log.open("wb") as output:
            try:
                code = subprocess.run(
                    [*command, *(["--guided"] if guided else [])],
                    cwd=sanitized.TREE if clean else sanitized.ROOT,
                    env=sanitized.environment() if clean else dict(os.environ),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=seconds + START_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        taken_s = time.monotonic() - began
        executions, last = Box.read(box)
        failed = code != 0 or not executions
        self.total += executions
        rate = executions / max(0.001, taken_s)
        how = ("guided" if guided else "random") + (", sanitized" if clean else "")
        print(f"{target.name:14} {how:18} {executions:>10} executions, {rate:.0f}/s{' FAILED' * failed}", flush=True)
        if failed:
            self.failed += 1
            kept = WORK / "failures" / f"{target.name}-{hashlib.sha256(last).hexdigest()[:12]}"
            kept.write_bytes(last)
            kept.with_suffix(".log").write_bytes(log.read_bytes())
            print(f"  exit {code}, kept as {kept}: {last[:200].hex()}", flush=True)
        if self._options.log is not None:
            date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
            count = Count(date, target.name, guided, clean, self._options.seed, round(taken_s, 1), executions, failed)
            with self._options.log.open("ab") as file:
                file.write(msgspec.json.encode(count) + b"\n")


def _chosen(parser: argparse.ArgumentParser, names: str) -> list[Target]:
    wanted = names.split(",") if names else [target.name for target in TARGETS]
    chosen = [target for target in TARGETS if target.name in wanted]
    if len(chosen) != len(wanted):
        parser.error(f"targets are {', '.join(target.name for target in TARGETS)}")
    return chosen


def _report(options: argparse.Namespace) -> int:
    counts = [msgspec.json.decode(line, type=Count) for line in (options.log or RESULTS).read_bytes().splitlines()]
    text = table(counts)
    print(text)
    if options.write is not None:
        begin, end = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"
        head, _, rest = options.write.read_text().partition(begin)
        options.write.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
    return 0


def main() -> int:
    """Fuzz; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--executions", type=int, default=0, help="of each process; 0: as many as its minutes allow")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--targets", default="", help=f"of {', '.join(target.name for target in TARGETS)}")
    parser.add_argument("--random", action="store_true", help="without atheris")
    parser.add_argument("--log", type=Path, help=f"append counts here; kept ones are in {RESULTS.name}")
    parser.add_argument("--report", action="store_true", help="only print the table of the kept counts")
    parser.add_argument("--write", type=Path, help="put the table of kept counts into this page, between its marks")
    options = parser.parse_args()
    if options.report:
        return _report(options)
    if options.log is not None:
        options.log = options.log.absolute()
    chosen = _chosen(parser, options.targets)
    guided = not options.random and importlib.util.find_spec("atheris") is not None
    if not guided:
        why = "as asked" if options.random else "ATHERIS IS NOT INSTALLED (pip install atheris)"
        print(f"*** {why}: nothing is guided by coverage; seeded mutation of good input only ***", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (WORK / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error(f"another run works in {WORK}: its counts and its tree are in files of their names")
    clean = sanitized.can_build()
    if clean and any(target.compiled for target in chosen):
        sanitized.build()
    elif not clean:
        print("*** NO GCC: the compiled targets run without bounds checks and address sanitizer ***", flush=True)
    print(f"seed {options.seed}", flush=True)
    fuzzing = Fuzzing(options, clean)
    share = options.minutes * 60 / sum(target.weight for target in chosen)
    for use_atheris in (True, False) if guided else (False,):
        for target in sorted(chosen, key=lambda target: target.name):
            part = 1.0 if not guided or not target.guides else 0.5
            if not use_atheris or target.guides:
                fuzzing.run(target, use_atheris, share * target.weight * part)
    print(f"{fuzzing.total} executions, {fuzzing.failed} processes failed")
    if options.write is not None:
        _report(options)
    return 1 if fuzzing.failed else 0


if __name__ == "__main__":
    sys.exit(main())
