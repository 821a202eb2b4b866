"""``--api URL --token-file F``: verbs asked of the HTTP service in the place of a router, and ``--show-api``.

The reply has the form of a router's, so that a command prints and ends the same whichever way it asked.
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

ASK_S = 70.0  # the service ends a request after a minute
T = TypeVar("T")


def api_of(options: "Options") -> "Api":
    """Return the service that the options name.

    Raises:
        UserError: The address or the token cannot be used.
    """
    from admin.api import Api, read_token

    return Api(options.api or "", read_token(options.token_file))


def call_of_verb(verb: str, arguments: Mapping[str, object]) -> "ApiCall":
    """Return the request for a verb.

    Raises:
        UserError: The API has none.
    """
    from admin.http.command_paths import call_of
    from conf.errors import ExitCode, UserError

    call = call_of(verb, arguments)
    if call is None:
        raise UserError(f"`{verb}` is not in the API: ask a router, without --api and --show-api", ExitCode.USAGE)
    return call


def show_call(verb: str, arguments: Mapping[str, object]) -> None:
    """Print the request for a verb, and end.

    Raises:
        UserError: The API has none.
        typer.Exit: It is printed.
    """
    typer.echo(line_of_call(verb, arguments))
    raise typer.Exit


def line_of_call(verb: str, arguments: Mapping[str, object]) -> str:
    """Return the request for a verb as one line.

    Raises:
        UserError: The API has none.
    """
    from stratamq.cli.output import printable

    return printable(call_of_verb(verb, arguments).line())


def page_of(options: "Options", path: str, kind: type[T]) -> T:
    """Return a page of the service.

    Raises:
        UserError: It has none at this path, refuses the token, or does not answer.
        typer.Exit: ``--show-api``: the call is printed.
    """
    from admin.api import ApiCall, read_answer

    call = ApiCall("GET", path)
    if options.show_api:
        typer.echo(call.line())
        raise typer.Exit
    api = api_of(options)
    return read_answer(api.address, api.ask(call, ASK_S)[1], kind)


def refuse_show(options: "Options") -> None:
    """Refuse ``--show-api`` of a command that is many calls.

    Raises:
        UserError: It is wanted.
    """
    from conf.errors import ExitCode, UserError

    if options.show_api:
        text = "--show-api: this command is many calls; docs/dashboard.md says which lists and changes there are"
        raise UserError(text, ExitCode.USAGE)


def ask_api(verb: str, arguments: Mapping[str, object], options: "Options") -> "AdminReply":
    """Ask the service for a verb, and return the reply as a router would give it.

    Raises:
        UserError: It has no such verb, refuses the token, or does not answer.
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
    ):  # begun: the router's own answer does not name it
        return AdminReply(0, True, {name: value for name, value in result.items() if name != "operation"})
    if status == 202 and isinstance(result, dict):
        return AdminReply(0, False, result, str(result.pop("detail", "")), ExitCode.PARTIAL)
    return AdminReply(0, True, result)
