"""One Spark session for the whole run, because its start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from jobs.spark import open_session, unavailable_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Tiny data: compiling each plan would dominate. The slow tests and the benchmark run compiled plans.
_SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",  # re-planning takes a third of the time without any gain
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    reason = unavailable_reason()
    if reason:
        pytest.skip(reason)
    session = open_session("stratamq-tests", master="local[2]", driver_memory_mb=2048, settings=_SMALL)
    yield session
    session.stop()
