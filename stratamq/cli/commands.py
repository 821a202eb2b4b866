"""Conversion of verbs to commands: names, arguments, and common options."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from stratamq.cli.node_requests import Options, show
from stratamq.cli.output import OutputFormat, OutputOption

__all__ = ["asks", "group", "options_of", "signed", "verb", "verb_about"]

P = ParamSpec("P")
ROUTER = Annotated[
    str, typer.Option("--router", help="Router address, host:port; default: STRATAMQ_ROUTER, else from --data.")
]
DATA = Annotated[Path, typer.Option("--data", help="Data folder of a running `stratamq up`, with its certificates.")]
API = Annotated[
    str | None, typer.Option("--api", metavar="URL", help="Use this HTTP service instead of routers and nodes.")
]
TOKEN = Annotated[Path | None, typer.Option("--token-file", help="With --api: file with a token from `token create`.")]
SHOW = Annotated[bool, typer.Option("--show-api", help="Only print the HTTP request.")]
ADDED = {  # name -> annotation, default: in the order of --help, after the command's own options
    "router": (ROUTER, ""),
    "data": (DATA, Path("data")),
    "api": (API, None),
    "token_file": (TOKEN, None),
    "show_api": (SHOW, False),
    "output": (OutputOption, OutputFormat.TABLE),
}


def asks(command: Callable[Concatenate[Options, P], None]) -> Callable[..., None]:
    """Add the common options to a command, which gets them as its first argument.

    typer reads parameters from the signature, so the options are added to it.
    """

    def asked(**values: Any) -> None:
        command(options_of(values), **values)  # type: ignore[call-arg]

    return signed(asked, command, {}, skipped=1)


def options_of(values: dict[str, Any]) -> Options:
    """Remove the common options from a command's values; return them."""
    return Options(**{name: values.pop(name) for name in ADDED})


def signed(
    asked: Callable[..., None], command: Callable[..., None], options: Mapping[str, tuple[Any, Any]], *, skipped: int
) -> Callable[..., None]:
    """Return ``asked`` with a command's signature, extended by options.

    Args:
        asked: Accepts all values as keywords.
        command: Its parameters come first, without the first ``skipped``.
        options: Name -> annotation, default; the common options follow them.
        skipped: Number of the command's parameters that are not options.
    """
    first = list(inspect.signature(command).parameters.values())
    table = {**options, **ADDED}
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, (annotation, default) in table.items()
    ]
    own = {parameter.name for parameter in first[:skipped]}
    made = wraps(command)(asked)
    made.__annotations__ = {
        **{name: of for name, of in command.__annotations__.items() if name not in own},
        **{name: annotation for name, (annotation, _) in table.items()},
    }
    made.__signature__ = inspect.Signature([*first[skipped:], *more])  # type: ignore[attr-defined]
    return made


def group(app: typer.Typer, name: str, text: str) -> typer.Typer:
    """Add an empty group of verbs and its plural name; return it."""
    made = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.add_typer(made, name=name, help=text, no_args_is_help=True)
    app.add_typer(made, name=f"{name}s", hidden=True, no_args_is_help=True)
    return made


def verb(to: typer.Typer, name: str, text: str, *, changes: bool = False) -> None:
    """Add a verb without arguments."""

    @asks
    def command(
        options: Options,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the changes.", hidden=not changes)] = False,
    ) -> None:
        show(name, {"dry_run": True} if dry_run and changes else {}, options)

    to.command(name.partition(" ")[2], help=text)(command)


def verb_about(to: typer.Typer, name: str, argument: str, text: str, *, changes: bool = False, loses: str = "") -> None:
    """Add a verb with one argument; a change has --dry-run.

    Args:
        loses: The data that is lost; then the verb validates the change, prints this, and requires --yes.
    """
    changes = changes or bool(loses)

    @asks
    def command(
        options: Options,
        value: Annotated[str, typer.Argument(metavar=argument.upper())],
        yes: Annotated[bool, typer.Option("--yes", help="Confirm.", hidden=not loses)] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the changes.", hidden=not changes)] = False,
    ) -> None:
        from conf.errors import ExitCode, UserError

        waits_for_yes = bool(loses) and not (yes or options.show_api)
        if (dry_run and changes) or waits_for_yes:
            show(name, {argument: value, "dry_run": True}, options)
            if waits_for_yes and not dry_run:
                raise UserError(f"`{name} {value[:64]}`: {loses}; repeat the command with --yes", ExitCode.USAGE)
            return
        show(name, {argument: value}, options)

    to.command(name.partition(" ")[2], help=text)(command)
