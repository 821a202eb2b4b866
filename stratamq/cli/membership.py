"""``stratamq membership ...``: who gossips with whom, and the keys that seal it.

A rotation is three steps, each on every member: install the new key, use it, remove the old one. Key files are made and
looked at here; the steps are the work of the router that is asked (``membership/admin.py``). Keys come from files of
mode 0600, never from the command line, which other processes can read.
"""

from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options, show
from stratamq.cli.output import OutputFormat, OutputOption, print_result
from stratamq.cli.router_lists import list_whole

__all__ = ["register"]

ForceOption = Annotated[bool, typer.Option("--force", help="Even when a member would be cut off.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
KeyIdArgument = Annotated[str, typer.Argument(metavar="KEY_ID", help="As `keys list` shows it.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    keys = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    for command in (generate, show_file, list_keys, install, use, remove):
        keys.command(command.__name__.removesuffix("_keys").replace("_", "-"))(command)
    group = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    list_whole(
        group,
        "membership list",
        "members",
        "member",
        "Show each member as the gossip of the router that is asked sees it.",
    )
    group.add_typer(keys, name="keys", help="The keys that seal gossip.", no_args_is_help=True)
    app.add_typer(group, name="membership", help="Gossip between nodes.", no_args_is_help=True)


def generate(file: Annotated[Path, typer.Argument(metavar="FILE", help="Must not exist yet.")]) -> None:
    """Make a key file with one new key."""
    from conf.errors import UserError
    from membership.keyring import generate_key, key_id, write_key_file

    if file.exists():
        raise UserError(f"{file} exists; a key file is never overwritten")
    key = generate_key()
    try:
        write_key_file(file, [key])
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    typer.echo(f"{file}: key {key_id(key).hex()}")


def show_file(file: Annotated[Path, typer.Argument(metavar="FILE")], output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the ids of the keys in a file, never the keys."""
    from membership.keyring import key_id

    ids = [{"key_id": key_id(key).hex(), "seals": index == 0} for index, key in enumerate(_read(file))]
    print_result(ids, output)


@asks
def list_keys(options: Options) -> None:
    """Show which member holds and which seals with which key."""
    show("membership keys list", {}, options)


@asks
def install(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Key file; its first key is installed.")],
    dry_run: DryRunOption = False,
) -> None:
    """First step of a rotation: every member learns a new key."""
    import base64

    key = "..." if options.show_api else base64.b64encode(_read(file)[0]).decode()
    show("membership keys install", {"key": key, "dry_run": dry_run}, options)


@asks
def use(
    options: Options,
    key: KeyIdArgument,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Second step: every member seals with a key that all have installed."""
    show("membership keys use", {"key_id": key, "force": force, "dry_run": dry_run}, options)


@asks
def remove(
    options: Options,
    key: KeyIdArgument,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Last step: every member forgets a key that none seals with."""
    show("membership keys remove", {"key_id": key, "force": force, "dry_run": dry_run}, options)


def _read(file: Path) -> list[bytes]:
    from conf.errors import UserError
    from membership.keyring import KeyRingError, read_key_file

    try:
        return read_key_file(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    except KeyRingError as error:
        raise UserError(str(error)) from None
