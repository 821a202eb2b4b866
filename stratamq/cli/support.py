"""``stratamq support bundle``: one diagnostic archive without secrets and payloads."""

import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli.cluster_requests import end_partial, with_cluster
from stratamq.cli.commands import asks, group
from stratamq.cli.doctor import QUESTIONS_S, examined, findings_of
from stratamq.cli.durations import seconds_of
from stratamq.cli.listing import TimeoutOption
from stratamq.cli.node_requests import Options
from stratamq.cli.output import print_result

if TYPE_CHECKING:
    from admin.bundle.masking import Hider
    from admin.queries import Cluster, ListResult

__all__ = ["register"]

APART_S = 10.0
LINES_MAX = 500_000
KEY_FILES = ("*.key", "*keys*", "*passw*", "*secret*", "*token*", "*psk*")  # names of files that may hold secrets

ToOption = Annotated[Path | None, typer.Option("--to", help="Output file or folder; default: the current folder.")]
SinceOption = Annotated[str, typer.Option("--since", help="Age limit of log and journal lines: 30s, 10m, 1h or 2d.")]
NoLogsOption = Annotated[bool, typer.Option("--no-logs", help="Omit the nodes' logs.")]
PseudonymsOption = Annotated[
    bool, typer.Option("--pseudonyms", help="Replace client IDs, users, topics and addresses by keyed hashes.")
]
ApartOption = Annotated[
    float, typer.Option("--over", min=0, max=60, help="Interval between two samples of metrics in s.")
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    support = group(app, "support", "Diagnostic data for support.")
    support.command("bundle")(bundle)


@asks
def bundle(
    options: Options,
    to: ToOption = None,
    since: SinceOption = "1h",
    no_logs: NoLogsOption = False,
    pseudonyms: PseudonymsOption = False,
    over: ApartOption = APART_S,
    timeout_s: TimeoutOption = QUESTIONS_S,
) -> None:
    """Write an archive of at most 64 MiB: doctor, settings, map, two metric samples, journals, logs; no payloads."""
    import msgspec

    from admin.bundle.archive import ArchiveFile, write_archive
    from conf.errors import UserError
    from stratamq.version import VERSION

    since_ms = int((time.time() - seconds_of(since, "--since")) * 1000)
    _check_place(to)
    answers = examined(options, over, timeout_s)
    lines = _lines(options, [node for node, _ in answers.rows["stats"]], timeout_s, no_logs=no_logs)
    cluster_map = answers.examined.sight.map
    hider = _hider(options.data, list(cluster_map.nodes), pseudonyms=pseudonyms)
    rows = {kind: [_row(node, row) for node, row in found] for kind, found in answers.rows.items()}
    told = _recent(lines, since_ms)
    for learnt in (*rows.values(), *told.values()):
        hider.learn(learnt)
    findings = [finding._asdict() for finding in findings_of(answers, options.data)]
    documents = {
        "doctor": hider.hide(findings),
        "status": hider.hide(answers.examined.status),
        "map": hider.hide(msgspec.to_builtins(cluster_map)),
        "versions": _versions(),
    }
    parts = [
        *(ArchiveFile(f"{name}.json", [document], is_document=True) for name, document in documents.items()),
        *(ArchiveFile(f"{kind}.jsonl", hider.hide(found)) for kind, found in rows.items()),
        *(ArchiveFile(f"{name}.jsonl", hider.hide(found), may_lose=True) for name, found in told.items()),
    ]
    partial = tuple(dict.fromkeys([*answers.partial, *(one for listed in lines.values() for one in listed.partial)]))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"stratamq-support-{cluster_map.cluster}-{stamp}.tar.gz"
    path = Path(name) if to is None else to / name if to.is_dir() else to
    about = {
        "format": 1,
        "made_at": stamp,
        "made_by": VERSION,
        "cluster": cluster_map.cluster,
        "pseudonyms": pseudonyms,
        "logs": not no_logs,
        "complete": not partial,
        "cut": [kind for kind, listed in lines.items() if listed.cursor],  # more rows than one bundle contains
        "partial": [hider.hide(missing._asdict()) for missing in partial],
    }
    try:
        size = write_archive(path, parts, about)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    print_result({"file": str(path), "bytes": size, "complete": not partial}, options.output)
    end_partial(partial)


def _check_place(to: Path | None) -> None:
    """Check the output path before querying nodes for half a minute.

    Raises:
        UserError: The file exists, its folder does not, or the folder is not writable.
    """
    from conf.errors import ExitCode, UserError

    folder = Path() if to is None else to if to.is_dir() else to.parent
    if to is not None and not to.is_dir() and os.path.lexists(to):
        raise UserError(f"--to {to} already exists: choose another path", ExitCode.USAGE)
    if not folder.is_dir():
        raise UserError(f"--to {to}: folder {folder} does not exist", ExitCode.USAGE)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder.resolve()} is not writable: choose another path with --to")


def _lines(options: Options, nodes: list[str], timeout_s: float, *, no_logs: bool) -> "dict[str, ListResult]":
    from admin.doctor.examine import asked

    async def act(cluster: "Cluster") -> "dict[str, ListResult]":
        kinds = ("journal",) if no_logs else ("journal", "log")
        return {kind: await asked(cluster, kind, nodes, LINES_MAX) for kind in kinds}

    return with_cluster(options, act, timeout_s)


def _hider(data: Path, nodes: list[str], *, pseudonyms: bool) -> "Hider":
    import stratamq
    from admin.bundle.masking import Hider, own_words, secrets_of
    from admin.doctor.host import ROOMS

    root = Path(stratamq.__file__).parent.parent
    keys = [path for pattern in KEY_FILES for path in data.rglob(pattern) if path.is_file()]
    return Hider(secrets_of(keys), own_words(root, ROOMS) if pseudonyms else None, nodes)


def _versions() -> dict[str, Any]:
    from importlib.metadata import distributions

    from stratamq.version import VERSION

    packages = dict(sorted((one.metadata["Name"] or "", one.version) for one in distributions()))
    return {"stratamq": VERSION, "python": sys.version, "platform": platform.platform(), "packages": packages}


def _recent(lines: "Mapping[str, ListResult]", since_ms: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows since a timestamp, by kind and node."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, listed in lines.items():
        for node, row in listed.rows:
            if (row.at_ms or 0) >= since_ms:
                found.setdefault(f"{kind}/{node}", []).append(_row(node, row))
    return found


def _row(node: str, row: Any) -> dict[str, Any]:
    import msgspec

    return {"node": node, **{name: one for name, one in msgspec.structs.asdict(row).items() if one is not None}}
