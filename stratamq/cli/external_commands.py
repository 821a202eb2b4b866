"""Commands of other packages: registered by name, imported on use.

``stratamq jobs`` requires the PySpark extra, ``stratamq check`` its own libraries; other commands must not load them.
"""

import importlib
from collections.abc import Callable

import typer

__all__ = ["register"]

# verb -> (module with a Typer ``app``, arguments before the user's, help)
MOUNTED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "store": ("storage.cli", (), "Export, import and verify stores; list copies and metrics of storage nodes."),
    "jobs": ("jobs.cli", (), "Compact and audit exported SSTables with Spark."),
    "check": ("stratamq.history.cli", ("check",), "Check a recorded history against the guarantees."),
    "record": ("stratamq.history.cli", ("record",), "Run a workload and record its clients' histories."),
}
RUNNING = "running"  # the list behind `store stats` without a folder
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add every external command; its arguments and help come from its own package."""
    for verb, (module, prefix, text) in MOUNTED.items():
        app.command(verb, help=text, context_settings=PASS_THROUGH, add_help_option=False)(
            _command(verb, module, prefix)
        )


def _command(verb: str, module: str, prefix: tuple[str, ...]) -> Callable[..., None]:
    def command(context: typer.Context) -> None:
        from conf.errors import ExitCode, UserError

        try:
            mounted = importlib.import_module(module).app
            if verb == "store":
                _add_running(mounted)
        except ModuleNotFoundError as error:
            hint = "install the extra: pip install 'stratamq[jobs]'" if verb == "jobs" else "not part of this version"
            raise UserError(f"{verb} is not available: no module {error.name} ({hint})", ExitCode.FAILED) from None
        name = "stratamq" if prefix else f"stratamq {verb}"
        arguments = [*prefix, *context.args]
        if verb == "store" and _is_of_running(arguments):
            arguments[0] = RUNNING
        # The caller prints its errors in one line, like all others.
        code = mounted(args=arguments, prog_name=name, standalone_mode=False, help_option_names=["-h", "--help"])
        raise typer.Exit(code if isinstance(code, int) else 0)

    return command


def _add_running(stores: typer.Typer) -> None:
    """Add the commands for running nodes, because the storage package has no links to them."""
    from stratamq.cli.listing import add_list
    from stratamq.cli.quarantine import add_aside

    add_list(stores, "replicas", "replica")
    add_list(stores, RUNNING, "storage", hidden=True)
    add_aside(stores)


def _is_of_running(arguments: list[str]) -> bool:
    """Return whether ``stats`` is for running nodes: it has no folder and no --help."""
    if arguments[:1] != ["stats"] or {"-h", "--help", "--json"} & {*arguments}:
        return False
    return len(arguments) == 1 or arguments[1].startswith("-")
