"""``--api URL --token-file F``: requests to the HTTP service instead of a router, and ``--show-api``.

A reply has the form of a router's reply, so commands print it in the same way.
"""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from admin.api import Api, ApiCall
    from stratamq.cli.options import Options
    from wire.messages.operators import AdminReply

__all__ = ["api_of", "ask_api", "line_of_call", "page_of", "refuse_show", "show_call"]

ASK_S = 70.0  # the service aborts a request after a minute
T = TypeVar("T")


def api_of(options: "Options") -> "Api":
    """Return the HTTP service of the options.

    Raises:
        UserError: The address or the token is invalid.
    """
    from admin.api import Api, read_token

    return Api(options.api or "", read_token(options.token_file))


def call_of_verb(verb: str, arguments: Mapping[str, object]) -> "ApiCall":
    """Return the HTTP request of a verb.

    Raises:
        UserError: The API has no such request.
    """
    from admin.http.command_paths import call_of
    from conf.errors import ExitCode, UserError

    call = call_of(verb, arguments)
    if call is None:
        raise UserError(f"`{verb}` is not available in the HTTP API: omit --api and --show-api", ExitCode.USAGE)
    return call


def show_call(verb: str, arguments: Mapping[str, object]) -> None:
    """Print the HTTP request of a verb and exit.

    Raises:
        UserError: The API has no such request.
        typer.Exit: The request is printed.
    """
    typer.echo(line_of_call(verb, arguments))
    raise typer.Exit


def line_of_call(verb: str, arguments: Mapping[str, object]) -> str:
    """Return the HTTP request of a verb as one line.

    Raises:
        UserError: The API has no such request.
    """
    from stratamq.cli.output import printable

    return printable(call_of_verb(verb, arguments).line())


def page_of(options: "Options", path: str, kind: type[T]) -> T:
    """Return a page of the HTTP service.

    Raises:
        UserError: The path does not exist, the token is refused, or the service does not respond.
        typer.Exit: The request is printed (``--show-api``).
    """
    from admin.api import ApiCall, read_answer

    call = ApiCall("GET", path)
    if options.show_api:
        typer.echo(call.line())
        raise typer.Exit
    api = api_of(options)
    return read_answer(api.address, api.ask(call, ASK_S)[1], kind)


def refuse_show(options: "Options") -> None:
    """Refuse ``--show-api`` for a command that sends many requests.

    Raises:
        UserError: The option is set.
    """
    from conf.errors import ExitCode, UserError

    if options.show_api:
        text = "--show-api: this command sends many requests; docs/dashboard.md lists the API"
        raise UserError(text, ExitCode.USAGE)


def ask_api(verb: str, arguments: Mapping[str, object], options: "Options") -> "AdminReply":
    """Send a verb to the HTTP service; return the reply in the form of a router's reply.

    Raises:
        UserError: The verb does not exist, the token is refused, or the service does not respond.
    """
    from access.operators.commands import VERBS
    from admin.api import ApiError, read_answer
    from conf.errors import ExitCode
    from wire.messages.operators import AdminReply

    call, api = call_of_verb(verb, arguments), api_of(options)
    headers = {"Idempotency-Key": secrets.token_hex(16)} if VERBS[verb].changes else {}
    try:
        status, data = api.ask(call, ASK_S, headers)
        result: Any = read_answer(api.address, data, object) if data else None
    except ApiError as refused:
        if refused.status in (401, 403):
            raise
        return AdminReply(0, False, refused.result, refused.message, refused.exit_code)
    if (
        status == 202 and isinstance(result, dict) and "operation" in result
    ):  # started: a router's reply does not contain the operation
        return AdminReply(0, True, {name: value for name, value in result.items() if name != "operation"})
    if status == 202 and isinstance(result, dict):
        return AdminReply(0, False, result, str(result.pop("detail", "")), ExitCode.PARTIAL)
    return AdminReply(0, True, result)
