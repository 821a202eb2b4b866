"""The ``stratamq`` command: registers the commands and prints errors (exit codes: conf/errors.py).

Expected errors are printed as lines without a traceback. Each command imports its modules when it runs, so ``--help``
and node starts stay fast. A command line registers only the commands of its first word.
"""

import importlib
import os
import sys
from typing import Annotated

import typer

from stratamq.foreign_packages import explain_conflict

try:
    from conf.core_dumps import forbid_core_dumps
    from conf.errors import ExitCode, UserError, told_alone
    from conf.private_files import keep_private
    from stratamq.cli.output import printable
    from stratamq.cli.plain_values import read_plainly
except ImportError as error:
    raise SystemExit(f"stratamq: {explain_conflict(error)}") from None

__all__ = ["ROOMS", "application", "main"]

UsageMistake: type[Exception] = typer.BadParameter.__bases__[0]  # typer does not export it
ROOMS = {  # module -> its commands, groups without plurals; in the order of --help
    "up": "up",
    "init": "init",
    "tiers": "edge router storage",
    "admin": "admin",
    "balance": "balance",
    "cluster": "cluster",
    "node": "node",
    "operation": "operation",
    "ring": "ring",
    "policy": "user role group ban revoke unrevoke policy",
    "token": "token",
    "client": "client",
    "session": "session queue",
    "subscription": "subscription",
    "topic": "topic route",
    "message": "msg",
    "trace": "trace",
    "retained": "retained",
    "share": "share",
    "top_lists": "slow drops journal log",
    "listener": "listener",
    "top": "top",
    "doctor": "doctor",
    "support": "support",
    "membership": "membership",
    "reload": "reload",
    "audit": "audit",
    "bridge": "bridge",
    "federate": "federate",
    "gateway": "gateway",
    "config": "config",
    "external_commands": "store jobs check record",
}


def application(word: str = "") -> typer.Typer:
    """Return the application; with the first word known, only its commands, as registering all takes 0.3 s."""
    app = typer.Typer(
        name="stratamq",
        no_args_is_help=True,
        rich_markup_mode=None,  # importing rich costs more than all of --help
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    known = [room for room, words in ROOMS.items() if {word, word.removesuffix("s")} & {*words.split()}]
    for room in known or ROOMS:
        importlib.import_module(f"stratamq.cli.{room}").register(app)
    app.command("version")(print_version)
    app.callback()(every_command)
    return app


def print_version() -> None:
    """Print the version."""
    from stratamq.version import VERSION

    typer.echo(f"stratamq {VERSION}")


def _print_and_end(wanted: bool) -> None:
    if wanted:
        print_version()
        raise typer.Exit


def every_command(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_and_end)
    ] = False,
) -> None:
    """A distributed MQTT 3.1.1 / 5.0 broker in layers: edge, router, storage."""
    _ = version  # printed by the eager callback


def main(arguments: list[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    keep_private()
    forbid_core_dumps()
    read_plainly()
    try:
        words = sys.argv[1:] if arguments is None else arguments
        app = application(words[0] if words else "")
        code = app(args=arguments, prog_name="stratamq", standalone_mode=False)
        return code if isinstance(code, int) else ExitCode.OK
    except typer.Abort:
        return report([UserError("aborted")])
    except UsageMistake as mistake:
        return _usage(mistake)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        return report([error])
    except ImportError as error:
        return report([UserError(explain_conflict(error))])
    except BrokenPipeError:
        # `| head` closed the pipe: the flush at exit must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except BaseExceptionGroup as group:
        alone = told_alone(group)
        if isinstance(alone, KeyboardInterrupt):
            return report([UserError("aborted")])
        if isinstance(alone, UserError):
            return report([alone])
        raise


def _usage(mistake: Exception) -> int:
    """Print a usage error in one line; a group without a verb prints its help."""
    text = mistake.format_message()  # type: ignore[attr-defined]
    context = getattr(mistake, "ctx", None)
    if context is None or text.startswith("Usage:"):
        mistake.show()  # type: ignore[attr-defined]
        return ExitCode.USAGE
    line = " ".join(text.replace(": Value error, ", ": ").split()).removesuffix(".")
    return report([UserError(f"{line} (see `{context.command_path} -h`)", ExitCode.USAGE)])


def report(errors: list[UserError]) -> int:
    """Print expected errors, one line each (indented lines belong to the line above); return the exit code."""
    from conf.urls import mask_urls

    for line in dict.fromkeys(line for error in errors for line in error.message.split("\n")):
        line = printable(mask_urls(line))
        print(line if line.startswith(" ") else f"stratamq: {line}", file=sys.stderr)
    return max(error.exit_code for error in errors)
