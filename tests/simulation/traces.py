"""Traces of seeds in a file: ``--traces FILE`` writes one line per seed, ``--compare FILE`` reruns and compares them.

A line holds the seed, its options, and values that are equal in trees of equal behaviour: the scheduler's digest (each
byte on each stream, with its sending and arrival time, and each byte written to a disk), the number of events, the end
time, the digest of the clients' history and the verdict. None depends on names of classes, modules or files.

The seeds of one file cover every kind: two of three are in safety mode and one in liveness mode, every other one (drawn
separately) has faults of hardware, every fourth also SIGTERM, every eighth also clients above Receive Maximum.
"""

import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from zlib import crc32

from tests.simulation.simulation import FLAGS, Mode, Options, run_seed

__all__ = ["Trace", "TracesUnreadable", "compare_traces", "read_traces", "run_traces", "write_traces"]

REAL_TIME_MAX_S = 600.0  # of one seed, processor time, so that a busy machine does not affect a trace
REPORT_EVERY = 25
HEADING = "# seed mode seconds flags digest events end_s history verdict"


class TracesUnreadable(ValueError):
    """A line of the file is not a trace."""


@dataclass(frozen=True)
class Trace:
    """One line of the file."""

    seed: int
    mode: str
    seconds: float
    flags: str  # names of FLAGS separated by commas, or "-"
    digest: str = ""
    events: int = 0
    end_s: str = ""
    history: str = ""
    verdict: str = ""

    def line(self) -> str:
        """Return the line of the file."""
        return " ".join(str(getattr(self, each.name)) for each in fields(self))

    def options(self) -> Options:
        """Return the options of the seed."""
        flags = {name: True for name in FLAGS if name in self.flags.split(",")}
        mode: Mode = "liveness" if self.mode == "liveness" else "safety"
        return Options(mode=mode, seconds=self.seconds, real_time_max_s=REAL_TIME_MAX_S, **flags)  # type: ignore[arg-type]


def plan(seed: int, options: Options) -> Trace:
    """Return the trace of a seed without results."""
    return Trace(seed, options.mode, options.seconds, ",".join(name for name in FLAGS if getattr(options, name)) or "-")


def read_traces(path: Path) -> list[Trace]:
    """Return the traces of a file.

    Raises:
        TracesUnreadable: A line is not a trace.
    """
    traces = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.startswith("#"):
            try:
                seed, mode, seconds, flags, digest, events, *rest = line.split()
                traces.append(Trace(int(seed), mode, float(seconds), flags, digest, int(events), *rest))
            except (ValueError, TypeError) as error:
                raise TracesUnreadable(f"{path}, line {number} is no trace: {error}") from None
    return traces


def run_traces(plans: Sequence[Trace], jobs: int) -> Iterator[Trace]:
    """Run seeds in a number of processes and yield their traces, in the order of the plans."""
    if jobs <= 1:
        yield from map(_run, plans)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run, plans)


def write_traces(path: Path, plans: Sequence[Trace], jobs: int) -> int:
    """Run the seeds and write their traces; return the exit code, which is 1 if a seed failed."""
    started, failed, events = time.monotonic(), [], 0
    with path.open("w") as file:
        file.write(HEADING + "\n")
        for done, trace in enumerate(run_traces(plans, jobs), start=1):
            file.write(trace.line() + "\n")
            file.flush()
            events += trace.events
            failed += [] if trace.verdict == "clean" else [f"{trace.seed} ({trace.verdict})"]
            _report(done, len(plans), started)
    print(f"{_census(plans)}, {events} events in {time.monotonic() - started:.0f} s: traces are in {path}")
    print(f"{len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def compare_traces(path: Path, known: Sequence[Trace], jobs: int) -> int:
    """Run the seeds of a file again; return the exit code, which is 1 at the first difference."""
    started, events = time.monotonic(), 0
    for done, trace in enumerate(run_traces(known, jobs), start=1):
        before = known[done - 1]
        if trace != before:
            print(f"seed {trace.seed} ({trace.mode}, {trace.seconds} s, {trace.flags}) differs from {path}:")
            for each in fields(trace):
                then, now = getattr(before, each.name), getattr(trace, each.name)
                if then != now:
                    print(f"  {each.name}: {then} before, {now} now")
            print(f"{done - 1} of {len(known)} seeds were equal before it")
            return 1
        events += trace.events
        _report(done, len(known), started)
    print(f"{_census(known)}, {events} events in {time.monotonic() - started:.0f} s: equal to {path}, seed by seed")
    return 0


def _run(trace: Trace) -> Trace:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        result = run_seed(trace.seed, trace.options())
    finally:
        logging.disable(before)
    return Trace(
        trace.seed,
        trace.mode,
        trace.seconds,
        trace.flags,
        f"{result.digest:08x}",
        result.events,
        f"{result.seconds:.6f}",
        f"{crc32(result.history):08x}",
        f"failed:{len(result.failures)}" if result.failures else "clean",
    )


def _census(traces: Sequence[Trace]) -> str:
    words = [f"{sum(trace.mode == mode for trace in traces)} {mode}" for mode in ("safety", "liveness")]
    words += [f"{sum(flag in trace.flags.split(',') for trace in traces)} with {flag}" for flag in FLAGS]
    return f"{len(traces)} seeds ({', '.join(words)})"


def _report(done: int, total: int, started: float) -> None:
    if done % REPORT_EVERY == 0 and done != total:
        print(f"{done}/{total} seeds, {done / (time.monotonic() - started):.2f}/s", file=sys.stderr, flush=True)
