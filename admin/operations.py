"""Long-running work of a cluster in one table: the rebalance, drains of nodes, and exports of storage nodes.

Rows are built from the status replies of routers and storage nodes; no state is kept. Each names its cancel command, ""
if it has none. ``stratamq jobs`` lists Spark jobs, ``trace list`` traces.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from admin.links import NodeLinks
from admin.queries import Cluster
from admin.scatter_gather import MissingRows
from conf.errors import ExitCode, UserError
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.operators import AdminReply

__all__ = ["EXPORT", "EXPORT_CANCEL", "RunningCommand", "begun_by", "exports_of", "find", "operations", "ordered"]

EXPORT = "store export status"
EXPORT_CANCEL = "store export cancel"
STATUS_S = 2.0


class RunningCommand(NamedTuple):
    """One operation."""

    id: str
    kind: str  # "rebalance", "drain", "export"
    node: str  # "": the whole cluster
    state: str
    done: int | None
    total: int | None  # None: not known
    left: int | None
    unit: str
    eta_s: float | None
    cancel: str  # command
    detail: str


def operations(
    ring: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]], exports: Mapping[str, Mapping[str, Any]]
) -> list[RunningCommand]:
    """Return operations that run, are paused or ended last.

    Args:
        ring: Reply of ``ring status``.
        nodes: Rows of ``node list``.
        exports: Reply of ``store export status``, by node that has one.
    """
    found = [_rebalance(ring)] if ring.get("id") is not None else []
    found += [drain for node in nodes if (drain := _drain(node)) is not None]
    return found + [_export(node, exports[node]) for node in sorted(exports)]


def begun_by(verb: str, arguments: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return the identifier of the operation that a command started, "" if none continues after the reply."""
    if verb == "ring rebalance" and result.get("rebalance") is not None:
        return f"rebalance-{result['rebalance']}"
    return f"drain-{arguments['node']}" if verb in ("node drain", "ring drain") else ""


def find(rows: Iterable[RunningCommand], name: str) -> RunningCommand:
    """Return an operation by its identifier.

    Raises:
        UserError: There is none.
    """
    known = list(rows)
    for row in known:
        if row.id == name:
            return row
    there = f"existing: {', '.join(row.id for row in known)}" if known else "there are none"
    raise UserError(f"no operation {name[:64]!r}; {there}", ExitCode.FAILED)


def _rebalance(ring: Mapping[str, Any]) -> RunningCommand:
    done, total, phase = int(ring["done"]), int(ring["total"]), str(ring["phase"])
    detail = "; ".join([*([str(ring["detail"])] if ring.get("detail") else []), *ring.get("errors", ())])
    cancel = "ring abort" if phase in ("running", "paused") else ""
    name = f"rebalance-{ring['id']}"
    return RunningCommand(
        name, "rebalance", "", phase, done, total, total - done, "moves", ring.get("eta_s"), cancel, detail
    )


def _drain(node: Mapping[str, Any]) -> RunningCommand | None:
    state, name = str(node["state"]), str(node["node"])
    if state not in ("draining", "drained"):
        return None
    is_edge = node.get("tier") == TIER_EDGE
    left = node.get("connected") if is_edge else _held(node)
    if left == 0:
        state = "drained"
    unit = "clients" if is_edge else "copies" if node.get("tier") == TIER_STORAGE else "shards"
    return RunningCommand(f"drain-{name}", "drain", name, state, None, None, left, unit, None, "node undrain", "")


def _held(node: Mapping[str, Any]) -> int:
    return sum(int(node.get(name) or 0) for name in ("replicas", "joining", "shards"))


def _export(node: str, status: Mapping[str, Any]) -> RunningCommand:
    done, total, error = int(status["finished"]), int(status["partitions"]), str(status["error"])
    state = "running" if not status["done"] else "cancelled" if error == "cancelled" else "failed" if error else "done"
    cancel = EXPORT_CANCEL if state == "running" else ""
    detail = error if state == "failed" else f"{status['rows']} rows"
    return RunningCommand(
        f"export-{node}", "export", node, state, done, total, total - done, "partitions", None, cancel, detail
    )


async def exports_of(cluster: Cluster) -> tuple[dict[str, dict[str, Any]], tuple[MissingRows, ...]]:
    """Return the export of each storage node that has one, and the nodes that did not answer."""
    found: dict[str, dict[str, Any]] = {}
    missing = []
    for entry in cluster.map.live(TIER_STORAGE):
        reply = await ordered(cluster, entry.node, EXPORT)
        if reply.ok and isinstance(reply.result, dict):
            found[entry.node] = reply.result
        elif reply.exit_code == ExitCode.NOT_READY:
            missing.append(MissingRows(entry.node, reply.error))
    return found, tuple(missing)


async def ordered(cluster: Cluster, node: str, verb: str) -> AdminReply:
    """Send a status command to one node."""
    assert isinstance(cluster.links, NodeLinks), "commands need links"
    return await cluster.links.order(node, verb, {}, STATUS_S)
