"""How verbs become commands: their names, their arguments, and the options that each of them has."""

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
ROUTER = Annotated[str, typer.Option("--router", help="host:port of a router; default: STRATAMQ_ROUTER, or --data.")]
DATA = Annotated[Path, typer.Option("--data", help="Folder of a running `stratamq up`; also its certificates.")]
API = Annotated[
    str | None, typer.Option("--api", metavar="URL", help="Ask this HTTP service in the place of routers and nodes.")
]
TOKEN = Annotated[Path | None, typer.Option("--token-file", help="With --api: file with a token of `token create`.")]
SHOW = Annotated[bool, typer.Option("--show-api", help="Only print the call of the HTTP service.")]
ADDED = {  # name -> annotation, default: in the order of --help, after a command's own
    "router": (ROUTER, ""),
    "data": (DATA, Path("data")),
    "api": (API, None),
    "token_file": (TOKEN, None),
    "show_api": (SHOW, False),
    "output": (OutputOption, OutputFormat.TABLE),
}


def asks(command: Callable[Concatenate[Options, P], None]) -> Callable[..., None]:
    """Add the options of each command that asks to a command, which gets them as its first argument.

    typer reads parameters from the signature, so the added ones stand there as if they had been written.
    """

    def asked(**values: Any) -> None:
        command(options_of(values), **values)  # type: ignore[call-arg]

    return signed(asked, command, {}, skipped=1)


def options_of(values: dict[str, Any]) -> Options:
    """Take the options of each command out of the values of a command line."""
    return Options(**{name: values.pop(name) for name in ADDED})


def signed(
    asked: Callable[..., None], command: Callable[..., None], options: Mapping[str, tuple[Any, Any]], *, skipped: int
) -> Callable[..., None]:
    """Return ``asked`` with the signature of a command and options behind it.

    Args:
        asked: Takes all as keywords.
        command: Whose parameters, but for the first ones, come before.
        options: Name -> annotation, default; those of each command come behind them.
        skipped: How many of the command's parameters are no options.
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
    """Add an empty group of verbs to the command, also under its plural, and return it."""
    made = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.add_typer(made, name=name, help=text, no_args_is_help=True)
    app.add_typer(made, name=f"{name}s", hidden=True, no_args_is_help=True)
    return made


def verb(to: typer.Typer, name: str, text: str, *, changes: bool = False) -> None:
    """Add a verb without arguments."""

    @asks
    def command(
        options: Options,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only show what would change.", hidden=not changes)
        ] = False,
    ) -> None:
        show(name, {"dry_run": True} if dry_run and changes else {}, options)

    to.command(name.partition(" ")[2], help=text)(command)


def verb_about(to: typer.Typer, name: str, argument: str, text: str, *, changes: bool = False, loses: str = "") -> None:
    """Add a verb about one thing; a change has --dry-run.

    Args:
        loses: Says of the thing what is lost for good; then the verb tries it, tells that, and does it with --yes.
    """
    changes = changes or bool(loses)

    @asks
    def command(
        options: Options,
        value: Annotated[str, typer.Argument(metavar=argument.upper())],
        yes: Annotated[bool, typer.Option("--yes", help="Do it.", hidden=not loses)] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only show what would change.", hidden=not changes)
        ] = False,
    ) -> None:
        from conf.errors import ExitCode, UserError

        waits_for_yes = bool(loses) and not (yes or options.show_api)
        if (dry_run and changes) or waits_for_yes:
            show(name, {argument: value, "dry_run": True}, options)
            if waits_for_yes and not dry_run:
                raise UserError(f"`{name} {value[:64]}`: {loses}: say --yes", ExitCode.USAGE)
            return
        show(name, {argument: value}, options)

    to.command(name.partition(" ")[2], help=text)(command)
