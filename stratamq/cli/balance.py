"""``stratamq balance``: a load balancer for edges, its status, and configurations for other balancers."""

from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.balance_render import render
from stratamq.cli.gateway_process import hand_options_on
from stratamq.cli.output import OutputFormat, OutputOption, print_result
from stratamq.cli.tiers import ConfigOption, LifelineOption, ReadyOption, SetOption, run_tier

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group; without a verb it runs the load balancer."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    group.callback(invoke_without_command=True)(balance)
    group.command("status")(status)
    group.command("render")(render)
    app.add_typer(group, name="balance", help="Run a load balancer in front of the edges.")


def balance(
    context: typer.Context,
    config: ConfigOption = None,
    settings: SetOption = None,
    ready_fd: ReadyOption = -1,
    lifeline_fd: LifelineOption = -1,
) -> None:
    """Run a load balancer in front of the edges."""
    if not hand_options_on(context):
        raise typer.Exit(run_tier("balance", config, settings or [], ready_fd, lifeline_fd))


def status(
    config: ConfigOption = None,
    data: Annotated[Path, typer.Option(help="Folder of `stratamq up --balance`.")] = Path("data"),
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the candidate edges, the excluded edges with the reason, and the distribution of clients."""
    from gateways.balancer.status import read_status
    from stratamq.packages import load_config

    folder = load_config("balance", config, ()).node.data_dir if config is not None else data / "balance-0"
    print_result(read_status(folder), output)
