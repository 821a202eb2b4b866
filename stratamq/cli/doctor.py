"""``stratamq doctor``: faults of a cluster and of this host, each with a remedy.

Exit codes: 0; 1 if a check fails; 2 for a wrong command line; 3 if no check fails, but some nodes did not respond.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratamq.cli.api_requests import refuse_show
from stratamq.cli.cluster_requests import end_partial, with_cluster
from stratamq.cli.commands import asks
from stratamq.cli.listing import TimeoutOption
from stratamq.cli.node_requests import Options, ask
from stratamq.cli.output import OutputFormat, print_result
from stratamq.cli.tiers import ConfigOption, SetOption

if TYPE_CHECKING:
    from admin.doctor.examine import CollectedRows
    from admin.doctor.findings import DoctorFinding
    from admin.queries import Cluster

__all__ = ["QUESTIONS_S", "examined", "findings_of", "register"]

APART_S = 2.0  # between two samples of metrics
QUESTIONS_S = 30.0  # for one kind of rows of all nodes
ApartOption = Annotated[float, typer.Option("--over", min=0, max=60, help="Interval of growth measurements in s.")]
TierOption = Annotated[str, typer.Option("--tier", help="With --config: tier of the file.")]
LocalOption = Annotated[bool, typer.Option("--local", help="Check only this host and --data; contact no node.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


@asks
def doctor(
    options: Options,
    tier: TierOption = "",
    config: ConfigOption = None,
    settings: SetOption = None,
    over: ApartOption = APART_S,
    local: LocalOption = False,
    timeout_s: TimeoutOption = QUESTIONS_S,
) -> None:
    """Diagnose the cluster and this host, with a remedy for each fault; exit code 1 if a check fails."""
    from admin.doctor.findings import FAIL, worst
    from conf.errors import ExitCode

    answers = None if local else examined(options, over, timeout_s)
    findings = findings_of(answers, options.data, tier, config, settings or [])
    partial = answers.partial if answers is not None else ()
    rows = [finding._asdict() for finding in findings]
    if options.output in (OutputFormat.TABLE, OutputFormat.WIDE):
        print_result(rows, options.output)
    else:
        missing = [one._asdict() for one in partial]
        result: dict[str, Any] = {"worst": worst(findings), "complete": not partial, "partial": missing}
        print_result({**result, "findings": rows}, options.output)
    if worst(findings) == FAIL:
        raise typer.Exit(ExitCode.FAILED)
    end_partial(partial)


def examined(options: Options, over: float, timeout_s: float) -> "CollectedRows":
    """Query the nodes.

    Raises:
        UserError: No router is known, or none responds.
    """
    from admin.doctor.examine import examine

    refuse_show(options)
    reply = ask("cluster status", {}, options)
    status = reply.result if reply.ok and isinstance(reply.result, dict) else {}

    async def act(cluster: "Cluster") -> "CollectedRows":
        return await examine(cluster, status, over)

    return with_cluster(options, act, timeout_s)


def findings_of(
    answers: "CollectedRows | None",
    data: Path,
    tier: str = "",
    config: Path | None = None,
    settings: list[str] | None = None,
) -> "list[DoctorFinding]":
    """Return the findings of all checks, those of the cluster first."""
    from admin.doctor import cluster, host
    from conf.errors import ExitCode, UserError

    if bool(config or settings) and not tier:
        raise UserError("--config and --set require --tier: edge, router or storage", ExitCode.USAGE)

    def check() -> object:
        from stratamq.packages import load_config
        from stratamq.start_checks import check_authorities, check_files, check_plaintext

        loaded = load_config(tier, config, settings or [])
        check_plaintext(loaded)
        check_files(tier, loaded)
        check_authorities(tier, loaded)
        return loaded

    if tier:
        from conf.settings import TIERS

        if tier not in TIERS:
            raise UserError(f"unknown tier {tier!r}: expected {', '.join(TIERS)}", ExitCode.USAGE)
    told = answers.examined.settings if answers is not None else {}
    found = cluster.judge(answers.examined) if answers is not None else []
    return found + host.judge(host.HostReader(data, check_config=check if tier else None, settings=told))
