"""``stratamq token create | list | revoke``: operators' tokens for the HTTP service.

The token is created here and printed once. The cluster stores only its SHA-256, so a router's log or disk does not
reveal it (``access/operators/tokens.py``).
"""

from typing import Annotated, Any

import typer

from stratamq.cli.commands import asks, group
from stratamq.cli.durations import seconds_of
from stratamq.cli.node_requests import Options, answer, show, told
from stratamq.cli.output import print_result
from stratamq.cli.router_lists import list_pages

__all__ = ["register"]

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the changes.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    tokens = group(app, "token", "Tokens of operators for the HTTP service.")
    tokens.command("create")(create)
    list_pages(tokens, "token", "List all tokens by name, with role and expiry.")
    tokens.command("revoke")(revoke)


@asks
def create(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    role: Annotated[str, typer.Option("--role", help="viewer, operator or admin.")] = "viewer",
    expires: Annotated[
        str, typer.Option("--expires", help="Lifetime: 30s, 10m, 2h or 90d; default: until revoked.")
    ] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Create a token and print it once."""
    from access.operators.commands import OperatorRole
    from access.operators.tokens import digest_of, new_token
    from conf.errors import ExitCode, UserError

    roles = [one.name.lower() for one in OperatorRole]
    if role not in roles:
        raise UserError(f"--role {role[:64]!r} is invalid: use one of {', '.join(roles)}", ExitCode.USAGE)
    if not name:
        raise UserError("the token's name is empty", ExitCode.USAGE)
    token = new_token()
    arguments: dict[str, object] = {"name": name, "role": role, "for_s": seconds_of(expires, "--expires")}
    arguments["dry_run"] = dry_run
    if not options.show_api:  # the HTTP service creates the token itself
        arguments["digest"] = digest_of(token)
    result: dict[str, Any] = answer("token create", arguments, options)
    shown = {} if dry_run else {"token": token}
    print_result({"name": name, "role": role, **shown, **told(result, options)}, options.output)


@asks
def revoke(
    options: Options,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    dry_run: DryRunOption = False,
) -> None:
    """Revoke a token on every HTTP service."""
    show("token revoke", {"name": name, "dry_run": dry_run}, options)
