"""Ordinary seeds in several processes: results come in the order of the seeds, as from one process."""

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tests.simulation.simulation import Options, Result, run_seed

__all__ = ["AHEAD", "run_seeds"]

AHEAD = 2  # seeds per process that may run or be complete before the caller takes an earlier one


def run_seeds(plans: Iterable[tuple[int, Options]], jobs: int) -> Iterator[tuple[Options, Result]]:
    """Run seeds in a number of processes and yield each with its options, in the order of the plans."""
    if jobs <= 1:
        for seed, options in plans:
            yield options, run_seed(seed, options)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: deque[tuple[Options, Future[Result]]] = deque()
        for seed, options in plans:
            waiting.append((options, pool.submit(run_seed, seed, options)))
            if len(waiting) >= AHEAD * jobs:
                options, future = waiting.popleft()
                yield options, future.result()
        for options, future in waiting:
            yield options, future.result()
