"""The path that creates a token: the only response of this service with a secret.

A caller that sends the SHA-256 of its own token, as the command line does, gets no token. Otherwise 256 random bits are
generated and returned once: a repeat with the same Idempotency-Key gets the first response without them.
"""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter

from access.operators.arguments import Digest, Seconds, TokenName, TokenRole
from access.operators.commands import OperatorRole
from access.operators.tokens import digest_of, new_token
from admin.http.changes import CommandRequest
from admin.http.command_handlers import Carry

__all__ = ["token_handlers"]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """A requested token."""

    name: TokenName
    role: TokenRole = "viewer"
    digest: Digest | None = None  # None: the service generates the token
    for_s: Seconds = 0.0


def token_handlers(run: Carry) -> list[HTTPRouteHandler]:
    """Return the handler."""

    @post(
        "/tokens",
        opt={"role": OperatorRole.ADMIN, "verb": "token create"},
        status_code=200,
        summary="Create a token; it is returned only once",
        description="The command `token create` of the CLI; needs the role admin.",
        operation_id="token_create_post",
    )
    async def create(
        request: Request[Any, Any, Any],
        data: Annotated[NewToken, Body()],
        dry_run: Annotated[bool, Parameter(query="dry_run", description="Dry run: only report the changes.")] = False,
    ) -> Response[dict[str, Any]]:
        given = {name: value for name, value in msgspec.structs.asdict(data).items() if value is not None}
        command = CommandRequest.of(request, "token create", given, dry_run, "")
        if data.digest is None:
            token = new_token()
            command = command._replace(generated={"digest": digest_of(token)}, secrets={"token": token})
        return await run(command)

    return [create]
