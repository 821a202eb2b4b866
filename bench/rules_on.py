"""The performance table with rules on against off: CPU time per message or connect, alternately.

    python -m bench.rules_on                       every row, five rounds
    python -m bench.rules_on --only "QoS 1"        rows whose name contains it
    python -m bench.rules_on --names               on: edge.publisher_properties names filters of other topics

On is a cluster as `stratamq up` starts it: a role authorizes each message, subscription and delivery. No edge starts
without rules, so off is a cluster with a module, loaded first, that removes its edges' rules; it exists
here alone. Two clusters run at the same time for one round, as in ``bench/two_trees.py``; then both are restarted,
in the other order, for two processes of one program differ by more than the cost of rules. Limit: 2 % more, by the
median of the rounds' ratios or by the minima of both: disturbances make a round only longer.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from bench.cluster import IDLE_ROWS, Cluster, machine
from bench.hot import ROWS, Row, build_mqload, make_certificate
from bench.two_trees import take_turns

BAR = 1.02
RUNS = 5
RULES = """import sys
if "edge" in sys.orig_argv[:6]:
    import edge.rights.rule_files
    {}
"""
LEAVE_OUT = "edge.rights.rule_files.read_rules = lambda _: None"
NAME_OTHERS = """import os
    os.environ["STRATAMQ_EDGE__PUBLISHER_PROPERTIES"] = '["never/#", "+/never/+"]'"""


def main() -> int:
    """Print a line for each row; return how many are above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="turns of each row")
    parser.add_argument("--only", default="", help="rows whose name contains it")
    parser.add_argument("--names", action="store_true", help="what publishers' names on other topics cost")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    folder = Path(tempfile.mkdtemp(prefix="stratamq-bench-"))
    try:
        make_certificate(folder)
        on, off = (NAME_OTHERS, "pass") if arguments.names else ("pass", LEAVE_OUT)
        for name, text in {"with": RULES.format(on), "without": RULES.format(off)}.items():
            (folder / name).mkdir()
            (folder / name / "sitecustomize.py").write_text(text)
        mqload = build_mqload(folder)
        rows = [row for row in (*ROWS, *IDLE_ROWS) if arguments.only.lower() in row.name.lower()]
        above = [row.name for row in rows if not _holds(row, mqload, folder, arguments.runs)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(above)} of {len(rows)} rows cost more than 2 %" + (f": {', '.join(above)}" if above else ""))
    return min(1, len(above))


def _holds(row: Row, mqload: Path, folder: Path, runs: int) -> bool:
    on, off = take_turns(
        row,
        mqload,
        runs,
        (
            lambda edges: Cluster(folder, edges, path=folder / "with"),
            lambda edges: Cluster(folder, edges, path=folder / "without"),
        ),
        turns_of_a_pair=1,
    )
    by_turns = statistics.median(mine / its for mine, its in zip(on, off, strict=True))
    by_least = min(on) / min(off)
    print(
        f"{row.name:40} {by_turns:6.3f} by turns {by_least:6.3f} by the least"
        f"   {statistics.median(on):8.3f} us on ({min(on):.3f}), {statistics.median(off):.3f} off ({min(off):.3f})"
        f"{'  ABOVE' * (min(by_turns, by_least) > BAR)}",
        flush=True,
    )
    return min(by_turns, by_least) <= BAR


if __name__ == "__main__":
    sys.exit(main())
