"""The report of an audit: findings as a Parquet table, a JSON summary for scripts, and an HTML page.

``stratamq jobs audit --output DIR`` writes it, and ``stratamq jobs report``, which is the same with ``--output``
required. The page is in ``jobs/report_page.py``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.urls import mask_urls
from jobs.audit_result import AuditResult
from jobs.files import FileSystem, open_directory
from jobs.findings import FINDING_SCHEMA
from jobs.report_page import page
from wire.sstable.manifest import Manifest, ManifestDamaged, decode_manifest, manifest_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["partition_table", "summary", "write_report"]


def partition_table(manifest: Manifest, parent: Manifest | None) -> list[dict[str, Any]]:
    """Return files, rows, bytes and known garbage per partition, now and, if known, before the last compaction."""
    rows = []
    for partition in sorted({*manifest.partitions, *(parent.partitions if parent else ())}):
        now, before = _state(manifest, partition), _before(manifest, parent, partition)
        rows.append({"partition": partition, **now, **{f"{name}_before": value for name, value in before.items()}})
    return rows


def _before(manifest: Manifest, parent: Manifest | None, partition: int) -> dict[str, int]:
    """Return the state before the compaction; without its manifest, the part that the compaction recorded."""
    if parent is not None:
        return _state(parent, partition)
    noted = manifest.job.before.get(str(partition), [])
    return dict(zip(("generations", "rows", "bytes"), noted, strict=False))


def _state(manifest: Manifest, partition: int) -> dict[str, int]:
    files = manifest.files_of(partition)
    return {
        "generations": len(files),
        "rows": sum(f.rows for f in files),
        "bytes": sum(f.bytes for f in files),
        "garbage": sum(f.tombstones + f.expired_at_write for f in files),
    }


def summary(result: AuditResult, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the data of the page, as plain JSON."""
    from jobs.proof_result import NOT_PROVEN

    first = next(iter(result.manifests.values()))
    return {
        "exit_code": int(result.exit_code),
        "counts": dict(sorted(result.counts.items())),
        "proof": result.proof.as_row() if result.proof else None,
        "proof_shared": result.proof.shared if result.proof else 0,
        "not_proven": list(NOT_PROVEN) if result.proof else [],
        "inputs": [
            {"input": mask_urls(uri), "manifest_no": m.manifest_no, "created_ms": m.created_ms, **m.totals}
            for uri, m in result.manifests.items()
        ],
        "cluster_id": first.cluster_id,
        "job": {"kind": first.job.kind, "removed": first.job.removed, "held": first.job.held},
        "partitions": partitions,
        "tables": result.tables,
        "seconds": result.seconds,
    }


def _parent(files: FileSystem, manifest: Manifest) -> Manifest | None:
    """Return the manifest that the compaction started from, if it exists."""
    if manifest.job.kind != "compact" or manifest.parent is None:
        return None
    try:
        data = files.read(manifest_name(manifest.parent.manifest_no))
        # In a separate output, this number may belong to another manifest.
        return decode_manifest(data) if hashlib.sha256(data).hexdigest() == manifest.parent.sha256 else None
    except (OSError, ManifestDamaged):
        return None


def write_report(spark: SparkSession | None, result: AuditResult, output: str) -> None:
    """Write findings/ (Parquet), summary.json and report.html into a directory without them.

    Args:
        spark: None writes into a folder of this machine, without Spark.
    """
    target = open_directory(spark, output)
    uri, manifest = next(iter(result.manifests.items()))
    parent = _parent(open_directory(spark, uri), manifest)
    described = summary(result, partition_table(manifest, parent))
    target.write("summary.json", (json.dumps(described, indent=1) + "\n").encode())
    findings = [asdict(finding) for finding in result.findings]
    if spark is None:
        _write_findings(findings, Path(target.uri("findings")))
    else:
        from jobs.rows import literal_frame

        frame = literal_frame(spark, findings, FINDING_SCHEMA)
        frame.coalesce(1).write.option("compression", "zstd").mode("errorifexists").parquet(target.uri("findings"))
    target.write("report.html", page(described, findings).encode())


def _write_findings(findings: list[dict[str, Any]], folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
    fields = [field.split() for field in FINDING_SCHEMA.split(", ")]
    folder.mkdir()
    schema = pa.schema([(name, types[kind]) for name, kind in fields])
    pq.write_table(pa.Table.from_pylist(findings, schema), folder / "findings.parquet", compression="zstd")
