"""SSTables as DataFrames: the explicit schema, the CRC as an expression, the digest of whole rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs.spark import limit_listing_tasks
from wire.sstable.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["COLUMN_NAMES", "SCHEMA", "crc_matches", "literal_frame", "read_runs", "row_hash"]

_TYPES: dict[str, T.DataType] = {
    "int8": T.ByteType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "bool": T.BooleanType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "list<int64>": T.ArrayType(T.LongType()),
}
SCHEMA = T.StructType([T.StructField(name, _TYPES[kind], nullable) for name, kind, nullable in COLUMNS])
COLUMN_NAMES = [name for name, _, _ in COLUMNS]


def read_runs(spark: SparkSession, uris: Sequence[str], *, damaged: bool = False) -> DataFrame:
    """Return the rows of exactly these files, without listing, and without columns from names like ``partition=7``.

    Args:
        damaged: Read the readable part of damaged files instead of failing; only to examine damage.
    """
    if not uris:
        return spark.range(0).select([F.lit(None).cast(f.dataType).alias(f.name) for f in SCHEMA.fields])
    limit_listing_tasks(spark, len(uris))
    reader = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
    if damaged:
        reader = reader.option("ignoreCorruptFiles", "true").option("ignoreMissingFiles", "true")
    return reader.parquet(*uris)


def crc_matches() -> Column:
    """Return whether the row's crc matches its key, value and seq (``wire.sstable.schema.row_crc``)."""
    seq = F.unhex(F.lpad(F.hex("seq"), 16, "0"))
    return F.crc32(F.concat("key", F.coalesce("value", F.lit(b"")), seq)) == F.col("crc")


def row_hash() -> Column:
    """Return a 64-bit hash over all columns; xor of it over rows is an order-independent digest within Spark."""
    return F.xxhash64(*COLUMN_NAMES)


def literal_frame(spark: SparkSession, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    """Return a small driver-side table as a DataFrame, without a Python worker in any executor.

    Args:
        schema: DDL of one row, for example ``name string, partition int``.
    """
    parsed = F.from_json(F.lit(json.dumps(rows)), T.ArrayType(_struct(schema)))
    return spark.range(1, numPartitions=1).select(F.inline(parsed))


def _struct(ddl: str) -> T.StructType:
    kinds = {"string": T.StringType(), "int": T.IntegerType(), "bigint": T.LongType(), "boolean": T.BooleanType()}
    fields = [field.strip().split(" ") for field in ddl.split(",")]
    return T.StructType([T.StructField(name, kinds[kind]) for name, kind in fields])
