"""``stratamq membership ...``: gossip members, and the keys that encrypt gossip.

A rotation has three steps on every member: install the new key, use it, remove the old key. Key files are created and
read here; the contacted router performs the steps (``membership/admin.py``). Keys come from files of mode 0600, never
from the command line, which other processes can read.
"""

from pathlib import Path
from typing import Annotated

import typer

from stratamq.cli.commands import asks
from stratamq.cli.node_requests import Options, show
from stratamq.cli.output import OutputFormat, OutputOption, print_result
from stratamq.cli.router_lists import list_whole

__all__ = ["register"]

ForceOption = Annotated[bool, typer.Option("--force", help="Proceed even if a member would be cut off.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the changes.")]
KeyIdArgument = Annotated[str, typer.Argument(metavar="KEY_ID", help="Key ID from `keys list`.")]


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
        "List the members as the contacted router knows them by gossip.",
    )
    group.add_typer(keys, name="keys", help="Gossip encryption keys.", no_args_is_help=True)
    app.add_typer(group, name="membership", help="Gossip between nodes.", no_args_is_help=True)


def generate(file: Annotated[Path, typer.Argument(metavar="FILE", help="Key file to create; must not exist.")]) -> None:
    """Create a key file with one new key."""
    from conf.errors import UserError
    from membership.keyring import generate_key, key_id, write_key_file

    if file.exists():
        raise UserError(f"{file} already exists; key files are never overwritten")
    key = generate_key()
    try:
        write_key_file(file, [key])
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    typer.echo(f"{file}: key {key_id(key).hex()}")


def show_file(file: Annotated[Path, typer.Argument(metavar="FILE")], output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the IDs of the keys in a file, never the keys."""
    from membership.keyring import key_id

    ids = [{"key_id": key_id(key).hex(), "seals": index == 0} for index, key in enumerate(_read(file))]
    print_result(ids, output)


@asks
def list_keys(options: Options) -> None:
    """Show the members that have each key and the members that encrypt with it."""
    show("membership keys list", {}, options)


@asks
def install(
    options: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Key file; its first key is installed.")],
    dry_run: DryRunOption = False,
) -> None:
    """First step of a rotation: install a new key on every member."""
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
    """Second step: encrypt with a key that every member has installed."""
    show("membership keys use", {"key_id": key, "force": force, "dry_run": dry_run}, options)


@asks
def remove(
    options: Options,
    key: KeyIdArgument,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Last step: remove a key with which no member encrypts."""
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
