"""Without pytest-xdist, and without its ``-n``, all tests run one after the other and no scheduler is asked for."""

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.workers import scheduler

# Some machines disable Python's bytecode files. The hundreds of nodes and commands of the tests would each compile all
# their imports: three quarters of their CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

gc.disable()  # until all tests are collected: thousands of them are no garbage


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    return scheduler(config, log)


@pytest.fixture(autouse=True)
def _logging_state() -> Iterator[None]:
    """Restore handlers and levels of loggers: ``configure_logs`` and libraries set those of the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {
        name: one.level for name, one in logging.Logger.manager.loggerDict.items() if isinstance(one, logging.Logger)
    }
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, one in logging.Logger.manager.loggerDict.items():
        if isinstance(one, logging.Logger) and one.level != levels.get(name, logging.NOTSET):
            one.setLevel(levels.get(name, logging.NOTSET))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a test's log encodable for another process: hostile names may be invalid Unicode."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_collection_finish() -> None:
    """Exclude existing objects from garbage collection."""
    gc.freeze()
    gc.enable()
