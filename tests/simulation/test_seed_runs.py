"""``--jobs``: several processes give the results, order, output and exit code of one."""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.__main__ import main
from tests.simulation.seed_runs import AHEAD, run_seeds
from tests.simulation.simulation import Options, Result, run_seed

SHORT = Options(seconds=0.5, works=("queue",))
FAILING = replace(SHORT, real_time_max_s=0.0)  # ended by its watchdog after the first few thousand events


def test_two_processes_give_the_output_of_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first seed fails in its process: it is reported in order, counted, and sets the exit code."""
    done: list[tuple[object, ...]] = []

    def short(plans: Iterator[tuple[int, Options]], jobs: int) -> Iterator[tuple[Options, Result]]:
        for options, result in run_seeds(((seed, FAILING if seed == 100 else SHORT) for seed, _ in plans), jobs):
            numbers = (result.seed, result.digest, result.events, result.seconds, result.history)
            done.append((options, *numbers, result.knobs, result.works, result.faults, result.checked))
            yield options, result

    def output_of(jobs: str) -> str:
        monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "2", "--seed", "100", "--no-shrink", "--jobs", jobs])
        assert main() == 1
        return re.sub(r"in \S+ s \(\S+/s\)|\(\S+ times real time\)", "", capsys.readouterr().out)

    monkeypatch.setattr("tests.simulation.__main__.run_seeds", short)
    alone = output_of("1")
    assert "seed 100 FAILED" in alone and "1 failed: 100" in alone
    assert output_of("2") == alone
    assert [run[1] for run in done] == [100, 101, 100, 101] and done[:2] == done[2:]


def test_few_seeds_run_ahead_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    class Pool:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, call: object, seed: int, _: Options) -> Future[Result]:
            assert call is run_seed
            begun.append(seed)
            future: Future[Result] = Future()
            future.set_result(Result(seed))
            return future

    monkeypatch.setattr("tests.simulation.seed_runs.ProcessPoolExecutor", Pool)
    runs = run_seeds(((seed, SHORT) for seed in range(20)), 2)
    for number in range(20):
        assert next(runs)[1].seed == number
        assert len(begun) == min(20, number + 2 * AHEAD)
    assert next(runs, None) is None
