"""``stratamq admin``: the HTTP service with the dashboard, in a process of its own."""

import typer

from stratamq.cli.tiers import ConfigOption, LifelineOption, ReadyOption, SetOption, run_tier

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("admin")(admin)


def admin(
    config: ConfigOption = None,
    settings: SetOption = None,
    ready_fd: ReadyOption = -1,
    lifeline_fd: LifelineOption = -1,
) -> None:
    """Run the HTTP service for operators: the API, the dashboard, alarms."""
    import importlib.util

    from conf.errors import ExitCode, UserError

    if importlib.util.find_spec("litestar") is None:
        raise UserError("the HTTP service needs Litestar: pip install 'stratamq[admin]'", ExitCode.USAGE)
    raise typer.Exit(run_tier("admin", config, settings or [], ready_fd, lifeline_fd))
