"""Requests of the ``store`` commands to the storage nodes of a running cluster, over operator links."""

from typing import Any

from conf.errors import ExitCode, UserError

__all__ = ["ExportRequests", "storage_nodes"]


class ExportRequests:
    """Sends one command at a time.

    Args:
        access: Addresses of routers, the certificate and the cluster's name (``wire/links/operator_access.py``).
    """

    def __init__(self, access: Any) -> None:
        self._access = access

    async def ask(self, address: str, verb: str, arguments: dict[str, object]) -> Any:
        """Return the result of a command.

        Raises:
            UserError: No reply, or a refusal.
        """
        from access.operators.commands import tier_of
        from wire.links.request import request
        from wire.messages.operators import Admin

        message = Admin(request=1, verb=verb, arguments=arguments)
        reply = await request(address, self._access.contexts, message, cluster=self._access.cluster, tier=tier_of(verb))
        if not reply.ok:
            raise UserError(reply.error or f"{verb} failed", reply.exit_code or ExitCode.FAILED)
        return reply.result

    async def request_from_router(self, verb: str) -> Any:
        """Return the reply of the first router that answers."""
        failures: list[str] = []
        for address in self._access.routers:
            try:
                return await self.ask(address, verb, {})
            except UserError as error:
                failures.append(error.message)
        raise UserError("\n".join(failures), ExitCode.NOT_READY)

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return str(self._access.cluster)


def storage_nodes(status: Any) -> dict[str, str]:
    """Return the addresses of the live storage nodes by name, from the reply to ``cluster status``.

    Raises:
        UserError: None is alive.
    """
    nodes = {
        str(node["node"]): str(node["address"])
        for node in status["nodes"]
        if node.get("tier") == "storage" and node["state"] in ("active", "draining")
    }
    if not nodes:
        raise UserError("no storage node is alive", ExitCode.NOT_READY)
    return nodes
