"""``stratamq jobs compact | audit | report | watch | prune``, without Spark at import time.

Options are passed unchanged to the modules' own parsers, so that spark-submit accepts the same options.
"""

from __future__ import annotations

import importlib
import sys

import typer

from jobs.findings import JobExitCode
from jobs.spark import close_session, unavailable_reason

__all__ = ["app"]

app = typer.Typer(
    name="jobs",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compact and audit exported SSTables; large ones with Spark (needs Java 17 and pyspark).",
)
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _run(module: str, context: typer.Context, *, needs_spark: bool = True) -> None:
    options = list(context.args)
    run = {"--help", "-h"}.isdisjoint(options)
    reason = unavailable_reason() if run and needs_spark else ""
    if reason:
        print(f"stratamq jobs: {reason}", file=sys.stderr)
        raise typer.Exit(JobExitCode.COULD_NOT_RUN)
    code = int(importlib.import_module(module).main(options))
    if run and module not in ("jobs.prune", "jobs.bundle"):
        close_session()
    raise typer.Exit(code)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def compact(context: typer.Context) -> None:
    """Merge the generations of an exported store, and remove garbage."""
    _run("jobs.compact", context, needs_spark=False)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def audit(context: typer.Context) -> None:
    """Check exported stores and ack ledgers for lost, duplicated or damaged data."""
    _run("jobs.audit", context, needs_spark=False)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def report(context: typer.Context) -> None:
    """Audit, and write findings, summary and page."""
    if not any(option in ("--help", "-h") or option.partition("=")[0] == "--output" for option in context.args):
        print("stratamq jobs report: --output is required", file=sys.stderr)
        raise typer.Exit(JobExitCode.USAGE)
    _run("jobs.audit", context, needs_spark=False)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def watch(context: typer.Context) -> None:
    """Account for acknowledged messages while the cluster runs, from its ledgers."""
    _run("jobs.watch", context)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def prune(context: typer.Context) -> None:
    """Remove files that no manifest in use lists."""
    _run("jobs.prune", context, needs_spark=False)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def bundle(context: typer.Context) -> None:
    """Write the archive for spark-submit --py-files: FILE.zip."""
    _run("jobs.bundle", context, needs_spark=False)


if __name__ == "__main__":
    app()
