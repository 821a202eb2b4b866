"""``python -m tests.simulation --seeds N [--seed n] [--mode safety|liveness]``: whole-cluster seeds.

Runs them one after another, or with ``--jobs N`` in N processes, with the same output in the order of the seeds. Prints
a progress bar and, at the end, seeds per second, simulated hours, events, faults and the checks. A failing seed prints
its replay options, and its list of faults is shortened as far as it still fails.
"""

import argparse
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stratamq.cli.progress import progress_bar
from tests.simulation.faults import Fault
from tests.simulation.seed_runs import run_seeds
from tests.simulation.simulation import FLAGS, Mode, Options, Result, run_seed, shorter
from tests.simulation.traces import Trace, TracesUnreadable, compare_traces, plan, read_traces, write_traces

SHRINK_REAL_S = 60.0  # time limit for shortening one seed's faults
CORES = os.cpu_count() or 1


def main() -> int:
    """Run the seeds; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=None, help="the first one; alone: only this one, with its log")
    parser.add_argument("--mode", choices=("safety", "liveness", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=20.0, help="of work with faults, simulated")
    parser.add_argument("--log", type=Path, default=None, help="write the log of the (last failing) seed here")
    parser.add_argument("--history", type=Path, default=None, help="write its history here")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument(
        "--hardware",
        action=argparse.BooleanOptionalAction,
        help="full disks, flipped bits and clocks that drift; without a word every other seed has them",
    )
    parser.add_argument("--stops", action="store_true", help="also SIGTERM for nodes and whole tiers")
    parser.add_argument("--drains", action="store_true", help="also drains of edges")
    parser.add_argument("--fleet", action="store_true", help="also many clients with wills that die at once")
    parser.add_argument("--freezes", action="store_true", help="also SIGSTOP, also within a turn")
    parser.add_argument("--slow", action="store_true", help="only clients that acknowledge slowly under small bounds")
    parser.add_argument("--heedless", action="store_true", help="also clients that send above Receive Maximum")
    parser.add_argument("--hostile", action="store_true", help="also hostile nodes with valid certificates")
    parser.add_argument("--looks", action="store_true", help="also an operator that lists, explains and traces")
    parser.add_argument("--policy", action="store_true", help="also users of the cluster whose rights are taken (P9)")
    parser.add_argument("--only-faults", default=None, help="replay: positions of the drawn faults to keep, 0,3,7")
    _add_traces(parser)
    arguments = parser.parse_args()
    if arguments.traces is not None:
        return write_traces(arguments.traces, _plans(arguments), arguments.jobs or CORES)
    if arguments.compare is not None:
        return _compare(arguments)
    if arguments.seed is not None and "--seeds" not in sys.argv:
        arguments.seeds = 1
    first = arguments.seed if arguments.seed is not None else 0
    totals: Counter[str] = Counter()
    failed: list[int] = []
    started = time.monotonic()
    with progress_bar("seeds") as show:
        runs = run_seeds(_ordinary(arguments, first), arguments.jobs or 1)
        for number, (options, result) in enumerate(runs):
            _count(totals, result)
            if result.failures:
                failed.append(result.seed)
                _report(result, options, shrink=not arguments.no_shrink and arguments.only_faults is None)
            if result.failures or arguments.seeds == 1:
                _write(arguments.log, "\n".join(result.log).encode())
                _write(arguments.history, result.history)
            show(number + 1, arguments.seeds, f"{len(failed)} failed")
            _progress(number + 1, arguments.seeds, len(failed), started)
    _summary(totals, arguments.seeds, failed, time.monotonic() - started)
    return 1 if failed else 0


def _ordinary(arguments: argparse.Namespace, first: int) -> Iterator[tuple[int, Options]]:
    for seed in range(first, first + arguments.seeds):
        options = Options(
            mode=_mode(arguments.mode, seed),
            seconds=arguments.seconds,
            log=arguments.log is not None,
            **_flags(arguments, seed),
        )
        if arguments.only_faults is not None:
            options = _only(seed, options, arguments.only_faults)
        yield seed, options


def _add_traces(parser: argparse.ArgumentParser) -> None:
    traces = parser.add_mutually_exclusive_group()
    traces.add_argument(
        "--traces",
        type=Path,
        metavar="FILE",
        help="run the seeds in --jobs processes and write one line a seed: what a tree that does the same must share. "
        "Unless other options say so: two of three seeds in safety mode and one in liveness mode, every other one "
        "with --hardware, every fourth also with --stops, every eighth also with --heedless",
    )
    traces.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="run the seeds of such a file again (with --seeds its first ones only), with the options in the file; the "
        "exit code is 1 at the first difference",
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=None, help="processes (default: one; for traces as many as there are cores)"
    )


def _plans(arguments: argparse.Namespace) -> list[Trace]:
    first = arguments.seed or 0
    return [
        plan(
            seed,
            Options(
                mode=_mode(arguments.mode, seed),
                seconds=arguments.seconds,
                **_flags(arguments, seed) | _drawn_flags(arguments, seed),
            ),
        )
        for seed in range(first, first + arguments.seeds)
    ]


def _compare(arguments: argparse.Namespace) -> int:
    try:
        known = read_traces(arguments.compare)
    except (OSError, TracesUnreadable) as error:
        print(error, file=sys.stderr)
        return 2
    known = known[: arguments.seeds] if "--seeds" in sys.argv else known
    return compare_traces(arguments.compare, known, arguments.jobs or CORES)


def _mode(wanted: str, seed: int) -> Mode:
    modes: tuple[Mode, ...] = ("safety", "safety", "liveness") if wanted == "both" else (wanted,)  # type: ignore[assignment]
    return modes[seed % len(modes)]


def _flags(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return the flags of the command line."""
    return {name: getattr(arguments, name) for name in FLAGS} | {"hardware": _hardware(arguments.hardware, seed)}


def _drawn_flags(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return the flags that traces draw from the seed."""
    drawn = {"stops": arguments.stops or seed % 4 == 3, "heedless": arguments.heedless or seed % 8 == 5}
    return drawn | ({"heedless": False} if arguments.slow else {})


def _hardware(wanted: bool | None, seed: int) -> bool:
    return random.Random(f"has hardware faults/{seed}").random() < 0.5 if wanted is None else wanted


def _only(seed: int, options: Options, positions: str) -> Options:
    drawn = run_seed(seed, options).faults
    return shorter(options, [drawn[int(position)] for position in positions.split(",") if position])


def _count(totals: Counter[str], result: Result) -> None:
    totals["simulated_ms"] += int(result.seconds * 1000)
    totals["events"] += result.events
    totals["faults"] += len(result.faults)
    totals["checked"] += sum(result.checked.values())
    totals["acknowledged"] += result.acknowledged
    totals["forged"] += result.forged
    totals["refused"] += result.refused
    totals["verbs"] += result.verbs
    totals["denied"] += result.denied
    totals.update(result.asked)
    for fault in result.faults:
        totals[f"fault {fault.kind}"] += 1


def _progress(done: int, total: int, failed: int, started: float) -> None:
    """Print a line at intervals where no bar is drawn."""
    if not sys.stderr.isatty() and (done % 50 == 0 or done == total):
        rate = done / max(0.001, time.monotonic() - started)
        print(f"{done}/{total} seeds, {rate:.2f}/s, {failed} failed", file=sys.stderr, flush=True)


def _report(result: Result, options: Options, *, shrink: bool) -> None:
    print(f"\nseed {result.seed} FAILED in {options.mode} mode after {result.seconds:.1f} simulated s:")
    for failure in result.failures[:10]:
        print(f"  {failure}")
    print(f"  works: {', '.join(result.works)}; {result.knobs}")
    print(f"  commit {_commit()}, Python {platform.python_version()}, trio {version('trio')}")
    faults = result.faults
    kept = list(range(len(faults)))
    if shrink:
        kept = _shrink(result, options)
        print(f"  {len(kept)} of {len(faults)} faults are needed:")
    for position in kept:
        print(f"    {position:3d}: {faults[position]}")
    replay = f"--seed {result.seed} --mode {options.mode} --seconds {options.seconds}"
    replay += " --hardware" if options.hardware else " --no-hardware"
    replay += "".join(f" --{name}" for name in FLAGS if name != "hardware" and getattr(options, name))
    if shrink:
        replay += f" --only-faults {','.join(map(str, kept)) or ','}"
    print(f"  replay: python -m tests.simulation {replay} --log sim.log --history sim.jsonl", flush=True)


def _shrink(result: Result, options: Options) -> list[int]:
    """Return the positions of a sufficient set of faults for the failure."""
    deadline = time.monotonic() + SHRINK_REAL_S
    faults: list[Fault] = result.faults
    kept = list(range(len(faults)))
    step = max(1, len(kept) // 2)
    while kept:
        at = 0
        while at < len(kept) and time.monotonic() < deadline:
            tried = kept[:at] + kept[at + step :]
            if run_seed(result.seed, shorter(options, [faults[position] for position in tried])).failures:
                kept = tried
            else:
                at += step
        if step == 1 or time.monotonic() >= deadline:
            break
        step = max(1, step // 2)
    return kept


def _summary(totals: Counter[str], seeds: int, failed: list[int], real_s: float) -> None:
    simulated_s = totals["simulated_ms"] / 1000
    print(
        f"{seeds} seeds in {real_s:.1f} s ({seeds / real_s:.2f}/s), {simulated_s / 3600:.2f} simulated hours "
        f"({simulated_s / real_s:.0f} times real time), {totals['events']} events, {totals['faults']} faults, "
        f"{totals['acknowledged']} acknowledged deliveries checked ({totals['checked']} checks in all)"
    )
    kinds = sorted((name.removeprefix("fault "), count) for name, count in totals.items() if name.startswith("fault "))
    if totals["forged"]:
        print(f"{totals['forged']} forged messages, {totals['refused']} refusals counted by nodes that did not restart")
    if totals["verbs"]:
        print(f"{totals['verbs']} verbs settled, {totals['denied']} packets judged while their user had lost a right")
    if totals["lists"]:
        stories, events = totals["stories"], totals["events of traces"]
        print(f"{totals['lists']} lists, {stories} stories and {events} events of traces judged")
    print("faults: " + ", ".join(f"{name} {count}" for name, count in kinds))
    print(f"{len(failed)} failed" + (f": {', '.join(map(str, failed))}" if failed else ""))


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _write(path: Path | None, data: bytes) -> None:
    if path is not None:
        path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
