"""Reports that ``stratamq jobs audit --output`` wrote below one folder, newest first.

Only each report's ``summary.json`` is read. An invalid file becomes a row with the reason. The number and the size of
files are bounded. The columns of the proof are empty if the audit had no ledgers.
"""

from pathlib import Path
from typing import Any

import msgspec

from admin.api_rows import told_type

__all__ = ["REPORTS_MAX", "AuditPage", "AuditRow", "read_reports"]

SUMMARY = "summary.json"
DIFFERENCES = "replica_differs"  # the rule about copies
REPORTS_MAX = 200  # newest
FOLDERS_MAX = 10_000  # scanned for reports
SUMMARY_BYTES_MAX = 4 * 1024 * 1024


class AuditRow(msgspec.Struct, omit_defaults=True):
    """One report: time of its exports, findings, and counts of acknowledged messages by outcome."""

    report: str
    at_ms: int = 0
    verdict: str = ""  # "clean", "findings", or the reason why the file is invalid
    findings: int | None = None
    acked: int | None = None
    delivered: int | None = None
    queued: int | None = None
    expired: int | None = None
    dropped: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    replica_diff: int | None = None
    found: dict[str, int] = {}  # by rule


class AuditPage(msgspec.Struct):
    """Reports, newest first; ``folder`` is searched for them, "" if no setting names one."""

    folder: str
    rows: list[told_type(AuditRow)]  # type: ignore[valid-type]  # derived from the row


class _Proof(msgspec.Struct, rename="upper"):
    acked: int
    delivered: int
    queued: int
    expired: int
    dropped: int
    lost: int
    duplicated: int


class _Input(msgspec.Struct):
    created_ms: int


class _Summary(msgspec.Struct):
    exit_code: int
    counts: dict[str, int]
    inputs: list[_Input]
    proof: _Proof | None = None


_decoder = msgspec.json.Decoder(_Summary)


def read_reports(folder: Path) -> list[AuditRow]:
    """Return the newest reports below a folder, by the time of their exports.

    Raises:
        OSError: The folder cannot be read.
    """
    found: list[tuple[float, Path]] = []
    for number, entry in enumerate(folder.iterdir()):
        if number >= FOLDERS_MAX:
            break
        summary = entry / SUMMARY
        try:
            found.append((summary.stat().st_mtime, summary))
        except OSError:  # not a report
            continue
    newest = sorted(found, reverse=True)[:REPORTS_MAX]
    rows = [_row(path, int(1000 * written)) for written, path in newest]
    return sorted(rows, key=lambda row: row.at_ms, reverse=True)


def _row(path: Path, written_ms: int) -> AuditRow:
    name = path.parent.name
    try:
        if not path.is_file():  # a pipe would block the thread
            return AuditRow(name, written_ms, "no report: no file")
        with path.open("rb") as file:
            data = file.read(SUMMARY_BYTES_MAX + 1)
        if len(data) > SUMMARY_BYTES_MAX:
            return AuditRow(name, written_ms, f"no report: longer than {SUMMARY_BYTES_MAX} bytes")
        summary = _decoder.decode(data)
    except OSError as error:
        return AuditRow(name, written_ms, f"cannot be read: {error.strerror or error}")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return AuditRow(name, written_ms, f"no report: {error}"[:200])
    at_ms = max((item.created_ms for item in summary.inputs), default=written_ms)
    proof: dict[str, Any] = msgspec.structs.asdict(summary.proof) if summary.proof is not None else {}
    return AuditRow(
        name,
        at_ms,
        "findings" if summary.exit_code else "clean",
        sum(summary.counts.values()),
        **proof,
        replica_diff=summary.counts.get(DIFFERENCES, 0),
        found=summary.counts,
    )
