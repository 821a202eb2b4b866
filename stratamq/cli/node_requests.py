"""Requests to a router: selection of the router, its certificate, and retries during an election.

Finds a router (``--router``, STRATAMQ_ROUTER, or the running `up` of ``--data``), sends the verb and prints the reply.
"""

import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stratamq.cli.node_table import node_table
from stratamq.cli.options import Options
from stratamq.cli.output import OutputFormat, print_result

if TYPE_CHECKING:
    from wire.links.operator_access import OperatorAccess
    from wire.messages.operators import Admin, AdminReply

__all__ = ["Options", "answer", "ask", "ask_links", "leader_address", "show", "show_nodes", "told"]

ELECTION_S = 5.0  # retry limit while no router leads; an election takes 1 to 2 s
ASK_AGAIN_S = 0.25
TABLES = (OutputFormat.TABLE, OutputFormat.WIDE)
READ_S = 10.0  # for an answer
CHANGE_S = 30.0  # a verb that revokes permissions waits up to 20 s for nodes and names the pending ones


def show(verb: str, arguments: dict[str, object], options: Options) -> None:
    """Send a verb, print the reply, and exit with its exit code."""
    from conf.errors import ExitCode, UserError

    reply = ask(verb, arguments, options)
    if reply.ok and reply.result is not None:
        print_result(told(reply.result, options), options.output)
    if not reply.ok:
        raise UserError(reply.error or f"{verb} failed", reply.exit_code or ExitCode.FAILED)
    if reply.exit_code:
        raise typer.Exit(reply.exit_code)


def answer(verb: str, arguments: dict[str, object], options: Options) -> Any:
    """Send a verb that reads; return the result.

    Raises:
        UserError: The request was refused, or no router responds.
    """
    from conf.errors import ExitCode, UserError

    reply = ask(verb, arguments, options)
    if not reply.ok:
        raise UserError(reply.error or f"{verb} failed", reply.exit_code or ExitCode.FAILED)
    return reply.result


def show_nodes(
    verb: str,
    arguments: dict[str, object],
    options: Options,
    *,
    only_counted: bool = False,
    about: Mapping[str, object] | None = None,
) -> Any:
    """Send a request to nodes, print their replies, and exit with the reply's exit code.

    Args:
        only_counted: Omit nodes with a count of 0.
        about: Fields that are printed first.
    Returns:
        The result, if every node succeeded.
    """
    from conf.errors import ExitCode, UserError

    reply = ask(verb, arguments, options)
    if isinstance(reply.result, dict):
        rows = [row for row in reply.result["nodes"] if row["count"] or not only_counted]
        if (rows or not only_counted) and not _says_nothing(reply, options):
            if options.output in TABLES:
                rows = node_table(rows, tried=bool(arguments.get("dry_run")))
            print_result({**(about or {}), **told(reply.result, options), "nodes": rows}, options.output)
    if not reply.ok:
        raise UserError(reply.error or f"{verb} failed", reply.exit_code or ExitCode.FAILED)
    return reply.result


def _says_nothing(reply: "AdminReply", options: Options) -> bool:
    """Return whether a table would only repeat errors, because every node failed."""
    rows = reply.result["nodes"] if isinstance(reply.result, dict) else ()
    return not reply.ok and options.output in TABLES and not any(row["done"] or row["count"] for row in rows)


def told(result: Any, options: Options) -> Any:
    """Return a result for the output format: a table omits empty fields."""
    if not isinstance(result, dict):
        return result
    return {
        name: value
        for name, value in result.items()
        if options.output not in TABLES or (value is not None and (value or name != "waits_for"))
    }


def ask(
    verb: str,
    arguments: dict[str, object],
    options: Options,
    *,
    follow_leader: bool = True,
    lost_s: float = 0.0,
) -> Any:
    """Return the AdminReply of the HTTP service if the options name one, else of a router.

    Raises:
        UserError: No server responds, or access is refused.
        typer.Exit: ``--show-api``: the request is printed.
    """
    from stratamq.cli.api_requests import ask_api, show_call

    if options.show_api:
        show_call(verb, arguments)
    if options.api is not None:
        return ask_api(verb, arguments, options)
    if "dry_run" in arguments:
        tried, arguments = _tried(verb, arguments)
        if tried is not None:
            return tried
    return ask_links(verb, arguments, options.router, options.data, follow_leader=follow_leader, lost_s=lost_s)


def _tried(verb: str, arguments: dict[str, object]) -> "tuple[AdminReply | None, dict[str, object]]":
    """Return the HTTP service's reply to a dry run without node support, and the verb's arguments.

    Raises:
        UserError: The arguments are invalid.
    """
    import msgspec

    from access.operators.commands import VERBS, audit_arguments
    from conf.errors import ExitCode, UserError
    from wire.messages.operators import AdminReply

    row = VERBS[verb]
    if "dry_run" in row.arguments.__struct_fields__:
        return None, arguments
    own = {name: value for name, value in arguments.items() if name != "dry_run"}
    if not arguments["dry_run"]:
        return None, own
    try:
        judged = msgspec.convert(own, row.arguments)
    except msgspec.ValidationError as error:
        raise UserError(f"`{verb}`: {error}", ExitCode.USAGE) from None
    return AdminReply(0, True, {"dry_run": True, "would": verb, "arguments": audit_arguments(judged)}), own


def ask_links(
    verb: str,
    arguments: dict[str, object],
    router: str,
    data: Path,
    *,
    follow_leader: bool = True,
    lost_s: float = 0.0,
) -> Any:
    """Return the AdminReply of the first reachable router, or of the leader that it names.

    During an election the request is retried. All retries have the same identifier, so routers apply an order once.

    Args:
        lost_s: Retry limit in s while no router responds, for commands that watch.
    Raises:
        UserError: No router is known, none responds or leads (exit code 4), or access is refused.
    """
    from conf.errors import ExitCode, UserError
    from wire.links.operator_access import find_access
    from wire.messages.operators import Admin

    access = find_access(router, data)
    question = Admin(request=1, verb=verb, arguments=arguments, order=secrets.token_hex(16))
    began = time.monotonic()
    said = False
    while True:
        reply, failures, electing = _ask_each(access, question)
        if reply is not None:
            leader = leader_address(reply.result) if follow_leader else ""
            return _ask_leader(leader, reply, arguments, verb, data) if leader else reply
        waited = time.monotonic() - began
        if waited >= max(ELECTION_S if electing else 0.0, lost_s):
            raise UserError("\n".join(failures), ExitCode.NOT_READY)
        if electing and not said and sys.stderr.isatty():
            typer.echo(f"no router is the leader: retrying for {ELECTION_S:g} s", err=True)
            said = True
        time.sleep(ASK_AGAIN_S)


def _ask_each(access: "OperatorAccess", question: "Admin") -> tuple[Any, list[str], bool]:
    """Return the first reply, or all failures and whether only a leader is missing."""
    from conf.errors import ExitCode, UserError
    from wire.links.fast_path_run import run_plainly
    from wire.links.request import request

    failures = []
    replies = []
    for address in access.routers:
        try:
            reply = run_plainly(_request, request, address, access, question)
        except UserError as error:
            if error.exit_code != ExitCode.NOT_READY:
                raise
            failures.append(error.message)
            question.repeated = True  # the router may have accepted the order
        else:
            if reply.exit_code != ExitCode.NOT_READY:
                return reply, [], False
            failures.append(f"router {address}: {reply.error}")
            replies.append(reply.result or {})
            question.repeated |= "leads" not in replies[-1]  # the router accepted the order and lost leadership
    # By a router that was not contacted
    led = len(access.routers) == 1 and any(result.get("leader") for result in replies)
    return None, failures, bool(replies) and not led


def leader_address(result: object) -> str:
    """Return the leader's address if another router replied, because only the leader knows leases."""
    if not isinstance(result, dict) or not result.get("leader") or result["leader"] == result.get("router"):
        return ""
    nodes = result.get("nodes", ())
    return next((str(node["address"]) for node in nodes if node["node"] == result["leader"]), "")


def _ask_leader(leader: str, answer: Any, arguments: dict[str, object], verb: str, data: Path) -> Any:
    from conf.errors import UserError

    try:
        return ask_links(verb, arguments, leader, data, follow_leader=False)
    except UserError:
        return answer  # the leader may have failed: fall back to the other router's reply


async def _request(request: Any, address: str, access: "OperatorAccess", message: "Admin") -> Any:
    from access.operators.commands import changes, tier_of

    return await request(
        address,
        access.contexts,
        message,
        cluster=access.cluster,
        tier=tier_of(message.verb),
        timeout_s=CHANGE_S if changes(message.verb) or message.verb == "policy status" else READ_S,
    )
