"""The path that makes a token: the only answer of this service that holds a secret.

Who sends the SHA-256 of a token of its own, as the command line does, gets no token back. Otherwise 256 random bits are
made here and told once: a repeat with the same Idempotency-Key gets the first answer without them.
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
    """A token that is wanted."""

    name: TokenName
    role: TokenRole = "viewer"
    digest: Digest | None = None  # None: a token is made here
    for_s: Seconds = 0.0


def token_handlers(carry: Carry) -> list[HTTPRouteHandler]:
    """Return the handler."""

    @post(
        "/tokens",
        opt={"role": OperatorRole.ADMIN, "verb": "token create"},
        status_code=200,
        summary="Make a token, which is told this once",
        description="The verb `token create` of the command line; wants the role admin.",
        operation_id="token_create_post",
    )
    async def create(
        request: Request[Any, Any, Any],
        data: Annotated[NewToken, Body()],
        dry_run: Annotated[bool, Parameter(query="dry_run", description="Only say what would change.")] = False,
    ) -> Response[dict[str, Any]]:
        given = {name: value for name, value in msgspec.structs.asdict(data).items() if value is not None}
        wish = CommandRequest.of(request, "token create", given, dry_run, "")
        if data.digest is None:
            token = new_token()
            wish = wish._replace(made={"digest": digest_of(token)}, told={"token": token})
        return await carry(wish)

    return [create]
