"""Processes a change from the request to its audit record: dry run or real, once per Idempotency-Key.

Without disk space for the audit record, the change is refused. If writing the record fails after the change, the
response reports both.
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
    """A requested command, possibly a dry run."""

    caller: Caller
    verb: str
    arguments: dict[str, Any]
    dry_run: bool
    if_match: str  # "": no condition
    key: str | None  # Idempotency-Key
    address: str  # of the caller
    request_id: str
    node: str = ""  # target node; "": the leading router
    generated: Mapping[str, str] = {}  # arguments that the service generated; not part of a repeat's identity
    secrets: Mapping[str, str] = {}  # part of the first response only, never stored

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
        """Return the command of a request with a known caller."""
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
    """Runs cluster commands for HTTP requests.

    Args:
        cluster: Target of the commands.
        audit: Receives the records.
        now: Seconds, monotonic.
    """

    def __init__(self, cluster: LiveCluster, audit: AuditService, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._audit = audit
        self._now = now
        self._replays = Replays()

    async def run(self, command: CommandRequest) -> Response[Any]:
        """Run one command, and return the response.

        Raises:
            Problem: It was refused, or no node answered.
        """
        if not VERBS[command.verb].changes:
            reply = await self._ask(command, command.arguments)
            return Response(reply.result, status_code=200)
        if command.key is None or command.dry_run:
            answer = _with_secret(command, await self._change(command))
        else:
            answer = await self._once(command, command.key)
        headers = {"Location": answer.location} if answer.location else {}
        return Response(
            msgspec.Raw(answer.body), status_code=answer.status, headers=headers, media_type="application/json"
        )

    async def _once(self, command: CommandRequest, key: str) -> StoredResponse:
        name = f"{command.caller.way} {command.caller.name}"
        said = msgspec.json.encode(
            [command.verb, command.node, command.arguments, command.if_match], order="deterministic"
        )
        known = self._replays.begin(self._now(), name, key, hashlib.sha256(said).hexdigest())
        if known is not None:
            return known
        answer = None
        try:
            answer = await self._change(command)
        finally:
            self._replays.end(name, key, answer)
        return _with_secret(command, answer)

    async def _change(self, command: CommandRequest) -> StoredResponse:
        row = VERBS[command.verb]
        arguments = {**await self._matched(command), **command.generated}
        if command.dry_run:
            if "dry_run" not in row.arguments.__struct_fields__:
                preview = {"dry_run": True, "would": command.verb, "arguments": _shown(command.verb, arguments)}
                return StoredResponse(200, msgspec.json.encode(preview))
            reply = await self._ask(command, {**arguments, "dry_run": True})
            _check_found(command, arguments, reply)
            return StoredResponse(200, msgspec.json.encode(reply.result))
        refusal = self._audit.refusal()
        if refusal:
            raise Problem(503, "no_room", refusal, "free disk space for the audit log", 5.0)
        reply = await self._asked(command, arguments)
        await self._note(command, arguments, reply)
        if not reply.ok and reply.exit_code != ExitCode.PARTIAL:
            raise of_reply(reply.error, reply.exit_code, changes=True, result=reply.result)
        _check_found(command, arguments, reply)
        result = reply.result if isinstance(reply.result, dict) else {"result": reply.result}
        if reply.error:
            result = {**result, "detail": reply.error}
        work = begun_by(command.verb, arguments, result) if reply.ok else ""
        if work:
            result = {**result, "operation": work}
        location = f"{OPERATIONS}/{quote(work, safe='')}" if work else ""
        return StoredResponse(202 if work or not reply.ok else 200, msgspec.json.encode(result), location)

    async def _matched(self, command: CommandRequest) -> dict[str, Any]:
        """Return the arguments; with If-Match they apply to one map epoch only."""
        if not command.if_match:
            return command.arguments
        text = command.if_match.strip().strip('"')
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Problem(400, "bad_request", "If-Match must be a map_epoch, like the ETag of /api/v1/ring")
        if "map_epoch" in VERBS[command.verb].arguments.__struct_fields__:
            return {**command.arguments, "map_epoch": int(text)}
        await self._cluster.follow()
        if self._cluster.links.map.epoch != int(text):
            epoch = self._cluster.links.map.epoch
            raise Problem(
                412, "map_moved", f"the map has epoch {epoch}, not {text}", "check the current state, then decide"
            )
        return command.arguments

    async def _ask(self, command: CommandRequest, arguments: dict[str, Any]) -> AdminReply:
        reply = await self._asked(command, arguments)
        if not reply.ok:
            raise of_reply(reply.error, reply.exit_code, changes=False)
        return reply

    async def _asked(self, command: CommandRequest, arguments: dict[str, Any]) -> AdminReply:
        name, role = command.caller.name, command.caller.role.name.lower()
        if command.node:
            return await self._cluster.order(command.node, command.verb, arguments, name, role)
        return await self._cluster.ask(command.verb, arguments, name, role)

    async def _note(self, command: CommandRequest, arguments: dict[str, Any], reply: AdminReply) -> None:
        """Write the audit record of a change, and wait until it is synced."""
        partial, caller = reply.exit_code == ExitCode.PARTIAL, command.caller
        shown = _shown(command.verb, arguments)
        if command.node:
            shown["node"] = command.node
        record = AuditRecord(
            "verb",
            "done" if reply.ok else "partial" if partial else "failed",
            actor=caller.name,
            role=caller.role.name.lower(),
            address=command.address,
            verb=command.verb,
            arguments={**shown, "request_id": command.request_id, "way": caller.way},
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
            text = f"{reply.error or 'it is done'}, but its audit record failed: {problems[0]}"
            raise Problem(500, "not_audited", text, "free disk space for the audit log")


def _check_found(command: CommandRequest, arguments: Mapping[str, Any], reply: AdminReply) -> None:
    """Refuse a command that matched nothing at any node.

    Raises:
        Problem: 404.
    """
    missing = nothing_found(command.verb, arguments, reply.result) if reply.ok else ""
    if missing:
        raise Problem(404, "not_found", missing, result=reply.result)


def _shown(verb: str, arguments: dict[str, Any]) -> dict[str, str | int | float | bool]:
    """Return the arguments without possible secrets."""
    return audit_arguments(msgspec.convert(arguments, VERBS[verb].arguments))


def _with_secret(command: CommandRequest, answer: StoredResponse) -> StoredResponse:
    """Return the first response to a change, with the secret that is sent once."""
    if not command.secrets or command.dry_run:
        return answer
    secrets = msgspec.json.encode({**msgspec.json.decode(answer.body), **command.secrets})
    return StoredResponse(answer.status, secrets, answer.location)
