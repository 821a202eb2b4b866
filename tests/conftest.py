"""Without pytest-xdist, and without its ``-n``, all tests run one after the other and no scheduler is asked for."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.workers import scheduler


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    return scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what a test logged fit for the way to another process: hostile names may be no Unicode."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
