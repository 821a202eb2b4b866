"""Verbs that live in other rooms: mounted by name, imported when used.

``stratamq jobs`` needs PySpark's extra, ``stratamq check`` its own libraries; neither may slow down anything else.
"""

import importlib
from collections.abc import Callable

import typer

__all__ = ["register"]

# verb -> (module with a Typer ``app``, what the app is called with before the user's arguments, help)
MOUNTED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "store": ("storage.cli", (), "Export, import and verify stores."),
    "jobs": ("jobs.cli", (), "Compact and audit exported SSTables with Spark."),
    "check": ("stratamq.history.cli", ("check",), "Judge a recorded history against the promises."),
    "record": ("stratamq.history.cli", ("record",), "Run a workload and record what its clients saw."),
}
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add every mounted verb; its own arguments and help come from where it lives."""
    for verb, (module, prefix, text) in MOUNTED.items():
        app.command(verb, help=text, context_settings=PASS_THROUGH, add_help_option=False)(
            _command(verb, module, prefix)
        )


def _command(verb: str, module: str, prefix: tuple[str, ...]) -> Callable[..., None]:
    def command(context: typer.Context) -> None:
        from conf.errors import ExitCode, UserError

        try:
            mounted = importlib.import_module(module).app
        except ModuleNotFoundError as error:
            hint = "install the extra: pip install 'stratamq[jobs]'" if verb == "jobs" else "not part of this version"
            raise UserError(f"{verb} is not available: no module {error.name} ({hint})", ExitCode.FAILED) from None
        name = "stratamq" if prefix else f"stratamq {verb}"
        mounted(args=[*prefix, *context.args], prog_name=name)

    return command
