"""Without pytest-xdist, and without its ``-n``, all tests run one after the other and nothing here is asked."""

from typing import Any

import pytest

from tests.workers import scheduler


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    return scheduler(config, log)
