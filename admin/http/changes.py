"""A change, from the request to its line in the audit: tried or done, once for each Idempotency-Key.

Without room for its line nothing is changed. Where the line fails behind the change, the answer says both.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import trio
from litestar import Request, Response

from access.operators.audit_chain import AuditRecord
from access.operators.audit_service import AuditService
from access.operators.commands import VERBS, audit_arguments
from admin.http.callers import Caller
from admin.http.idempotency import Replays, StoredResponse
from admin.http.live_cluster import LiveCluster
from admin.http.problems import Problem, of_reply
from admin.not_found import nothing_found
from admin.operations import begun_by
from conf.errors import ExitCode
from wire.messages.operators import AdminReply

__all__ = ["CommandRequest", "CommandRequests"]

OPERATIONS = "/api/v1/operations"


class CommandRequest(NamedTuple):
    """A verb that somebody wants carried out, or only tried."""

    caller: Caller
    verb: str
    arguments: dict[str, Any]
    dry_run: bool
    if_match: str  # "": whatever the map is
    key: str | None  # Idempotency-Key
    address: str  # of the caller
    request_id: str
    node: str = ""  # that is asked; "": the router that leads
    made: Mapping[str, str] = {}  # arguments that the service made: not in what a repeat is known by
    told: Mapping[str, str] = {}  # stands in the first answer, and is kept nowhere

    @classmethod
    def of(
        cls,
        request: Request[Any, Any, Any],
        verb: str,
        arguments: dict[str, Any],
        dry_run: bool,
        if_match: str,
        *,
        node: str = "",
    ) -> "CommandRequest":
        """Return the wish of a request, whose caller is known."""
        return cls(
            request.state.caller,
            verb,
            arguments,
            dry_run,
            if_match,
            request.headers.get("idempotency-key"),
            request.client.host if request.client is not None else "",
            str(request.scope["state"]["request_id"]),
            node,
        )


class CommandRequests:
    """The verbs of the cluster as requests.

    Args:
        cluster: Asked.
        audit: Written to.
        now: Seconds, monotonic.
    """

    def __init__(self, cluster: LiveCluster, audit: AuditService, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._audit = audit
        self._now = now
        self._replays = Replays()

    async def carry(self, wish: CommandRequest) -> Response[Any]:
        """Carry out one verb, and return the answer.

        Raises:
            Problem: It was refused, or could not be asked.
        """
        if not VERBS[wish.verb].changes:
            reply = await self._ask(wish, wish.arguments)
            return Response(reply.result, status_code=200)
        if wish.key is None or wish.dry_run:
            answer = _with_secret(wish, await self._change(wish))
        else:
            answer = await self._once(wish, wish.key)
        headers = {"Location": answer.location} if answer.location else {}
        return Response(
            msgspec.Raw(answer.body), status_code=answer.status, headers=headers, media_type="application/json"
        )

    async def _once(self, wish: CommandRequest, key: str) -> StoredResponse:
        name = f"{wish.caller.way} {wish.caller.name}"
        said = msgspec.json.encode([wish.verb, wish.node, wish.arguments, wish.if_match], order="deterministic")
        known = self._replays.begin(self._now(), name, key, hashlib.sha256(said).hexdigest())
        if known is not None:
            return known
        answer = None
        try:
            answer = await self._change(wish)
        finally:
            self._replays.end(name, key, answer)
        return _with_secret(wish, answer)

    async def _change(self, wish: CommandRequest) -> StoredResponse:
        row = VERBS[wish.verb]
        arguments = {**await self._matched(wish), **wish.made}
        if wish.dry_run:
            if "dry_run" not in row.arguments.__struct_fields__:
                would = {"dry_run": True, "would": wish.verb, "arguments": _shown(wish.verb, arguments)}
                return StoredResponse(200, msgspec.json.encode(would))
            reply = await self._ask(wish, {**arguments, "dry_run": True})
            _check_found(wish, arguments, reply)
            return StoredResponse(200, msgspec.json.encode(reply.result))
        refusal = self._audit.refusal()
        if refusal:
            raise Problem(503, "no_room", refusal, "make room for the audit log", 5.0)
        reply = await self._asked(wish, arguments)
        await self._note(wish, arguments, reply)
        if not reply.ok and reply.exit_code != ExitCode.PARTIAL:
            raise of_reply(reply.error, reply.exit_code, changes=True, result=reply.result)
        _check_found(wish, arguments, reply)
        result = reply.result if isinstance(reply.result, dict) else {"result": reply.result}
        if reply.error:
            result = {**result, "detail": reply.error}
        work = begun_by(wish.verb, arguments, result) if reply.ok else ""
        if work:
            result = {**result, "operation": work}
        location = f"{OPERATIONS}/{quote(work, safe='')}" if work else ""
        return StoredResponse(202 if work or not reply.ok else 200, msgspec.json.encode(result), location)

    async def _matched(self, wish: CommandRequest) -> dict[str, Any]:
        """Return arguments; with If-Match they hold for one map alone."""
        if not wish.if_match:
            return wish.arguments
        text = wish.if_match.strip().strip('"')
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Problem(400, "bad_request", "If-Match is a map_epoch, as the ETag of /api/v1/ring")
        if "map_epoch" in VERBS[wish.verb].arguments.__struct_fields__:
            return {**wish.arguments, "map_epoch": int(text)}
        await self._cluster.follow()
        if self._cluster.links.map.epoch != int(text):
            epoch = self._cluster.links.map.epoch
            raise Problem(412, "map_moved", f"the map has epoch {epoch}, not {text}", "look again, then decide")
        return wish.arguments

    async def _ask(self, wish: CommandRequest, arguments: dict[str, Any]) -> AdminReply:
        reply = await self._asked(wish, arguments)
        if not reply.ok:
            raise of_reply(reply.error, reply.exit_code, changes=False)
        return reply

    async def _asked(self, wish: CommandRequest, arguments: dict[str, Any]) -> AdminReply:
        name, role = wish.caller.name, wish.caller.role.name.lower()
        if wish.node:
            return await self._cluster.order(wish.node, wish.verb, arguments, name, role)
        return await self._cluster.ask(wish.verb, arguments, name, role)

    async def _note(self, wish: CommandRequest, arguments: dict[str, Any], reply: AdminReply) -> None:
        """Write the line of a change, and wait until it is on the disk."""
        partial, caller = reply.exit_code == ExitCode.PARTIAL, wish.caller
        shown = _shown(wish.verb, arguments)
        if wish.node:
            shown["node"] = wish.node
        record = AuditRecord(
            "verb",
            "done" if reply.ok else "partial" if partial else "failed",
            actor=caller.name,
            role=caller.role.name.lower(),
            address=wish.address,
            verb=wish.verb,
            arguments={**shown, "request_id": wish.request_id, "way": caller.way},
            reason=reply.error,
        )
        written = trio.Event()
        problems: list[str] = []

        def then(why: str) -> None:
            problems.append(why)
            written.set()

        self._audit.write(record, then)
        await written.wait()
        if problems[0]:
            text = f"{reply.error or 'it is done'}, and has no line: {problems[0]}"
            raise Problem(500, "not_audited", text, "make room for the audit log")


def _check_found(wish: CommandRequest, arguments: Mapping[str, Any], reply: AdminReply) -> None:
    """Refuse an order that found nothing: it is done at each node, and nobody had what it names.

    Raises:
        Problem: 404.
    """
    missing = nothing_found(wish.verb, arguments, reply.result) if reply.ok else ""
    if missing:
        raise Problem(404, "not_found", missing, result=reply.result)


def _shown(verb: str, arguments: dict[str, Any]) -> dict[str, str | int | float | bool]:
    """Return arguments without what may be secret."""
    return audit_arguments(msgspec.convert(arguments, VERBS[verb].arguments))


def _with_secret(wish: CommandRequest, answer: StoredResponse) -> StoredResponse:
    """Return the first answer to a change, with what is told once."""
    if not wish.told or wish.dry_run:
        return answer
    told = msgspec.json.encode({**msgspec.json.decode(answer.body), **wish.told})
    return StoredResponse(answer.status, told, answer.location)
