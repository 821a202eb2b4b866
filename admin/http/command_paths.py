"""Paths of the API that are a verb of the cluster: one row each. Arguments, ranges and roles are the verb's own.

A reading verb takes its arguments from the query, a changing one from the JSON body, but for DELETE; what stands in the
path is left out of both. ``{node}`` that is no argument of its verb is the node that is asked. Decides no right: the
table of verbs does, here and again at the node.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from access.operators.commands import VERBS
from admin.api import ApiCall

__all__ = ["BODIES", "PATHS", "VerbPath", "at_node", "call_of", "own_fields"]

BODIES = ("POST", "PUT", "PATCH")  # methods whose arguments stand in a body


class VerbPath(NamedTuple):
    """``GET /users/{user}`` is ``user show``; braces name arguments of the verb."""

    method: str
    path: str
    verb: str
    summary: str


PATHS = (
    VerbPath("GET", "/cluster", "cluster status", "Nodes, leases, epochs, copies"),
    VerbPath("GET", "/nodes", "node list", "Every node: tier, state, release, clients, addresses"),
    VerbPath("POST", "/nodes/{node}/drain", "node drain", "Let an edge's clients go, or stop placing on a node"),
    VerbPath("POST", "/nodes/{node}/undrain", "node undrain", "Use a drained node again"),
    VerbPath("POST", "/nodes/{node}/drain-clients", "client drain", "How a drained edge lets its clients go"),
    VerbPath("DELETE", "/nodes/{node}", "cluster forget", "Forget a node that is gone for good"),
    VerbPath("DELETE", "/clients/{client_id}", "client kick", "End a client's connection; its session stays"),
    VerbPath("POST", "/messages", "msg send", "Publish one message by the operators' door; the payload in base64"),
    VerbPath("POST", "/traces", "trace start", "Tell what happens to a client, topic, network or message"),
    VerbPath("DELETE", "/traces/{trace}", "trace stop", "End a trace; its events stay readable for a while"),
    VerbPath("POST", "/retained/clear", "retained clear", "Take retained messages of some topics away"),
    VerbPath("DELETE", "/sessions/{client_id}", "session delete", "Delete the session of a client that is away"),
    VerbPath("DELETE", "/sessions/{client_id}/queue", "queue purge", "Empty the queue of a session"),
    VerbPath("POST", "/sessions/{client_id}/expire", "session expire", "Let a session expire now"),
    VerbPath(
        "POST", "/listeners/{listener}/pause", "listener pause", "Take no new clients at a listener; who is there stays"
    ),
    VerbPath("POST", "/listeners/{listener}/resume", "listener resume", "Take clients at a paused listener again"),
    VerbPath("POST", "/reload", "reload", "Read certificates, lists and settings again, all or nothing"),
    VerbPath("POST", "/raft/transfer", "cluster transfer", "Let another router lead"),
    VerbPath("POST", "/raft/voters/{node}", "cluster join", "Make a waiting router a voter"),
    VerbPath("DELETE", "/raft/voters/{node}", "cluster leave", "Take a router out of the group"),
    VerbPath("GET", "/ring", "ring show", "Partitions and shards: primary, copies, epochs"),
    VerbPath("GET", "/ring/map", "ring export", "The whole map"),
    VerbPath("GET", "/ring/plan", "ring plan", "What a rebalance would move"),
    VerbPath("GET", "/ring/status", "ring status", "The rebalance that runs, or the last one"),
    VerbPath("GET", "/ring/verify", "ring verify", "Whether the map keeps its own rules"),
    VerbPath("GET", "/ring/explain", "ring explain", "Where a client identifier or a topic lives, and why"),
    VerbPath("POST", "/ring/rebalance", "ring rebalance", "Move partitions and shards to where the ring wants them"),
    VerbPath("POST", "/ring/pause", "ring pause", "Begin no further move"),
    VerbPath("POST", "/ring/resume", "ring resume", "Go on after a pause"),
    VerbPath("POST", "/ring/abort", "ring abort", "Stop: what is half-way goes back, or on if that is nearer"),
    VerbPath("POST", "/ring/nodes/{node}/add", "ring add", "Place on a node"),
    VerbPath("POST", "/ring/nodes/{node}/drain", "ring drain", "Empty a node"),
    VerbPath("DELETE", "/ring/nodes/{node}", "ring remove", "Forget a node that was drained and stopped"),
    VerbPath("POST", "/ring/delegations", "ring delegate", "Give a subtree of the topics a jurisdiction of its own"),
    VerbPath("DELETE", "/ring/delegations", "ring undelegate", "Take a delegation back"),
    VerbPath("GET", "/ring/lost", "ring lost", "What is left of partitions whose whole copies are gone"),
    VerbPath("POST", "/ring/recover", "ring recover", "Serve what a node has of a partition; the rest is lost"),
    VerbPath("GET", "/nodes/{node}/copies", "store copies", "Copies of partitions as a storage node has them"),
    VerbPath("GET", "/nodes/{node}/export", "store export status", "The export of a storage node"),
    VerbPath("DELETE", "/nodes/{node}/export", "store export cancel", "Stop the export of a storage node"),
    VerbPath("GET", "/nodes/{node}/aside", "store aside", "Damaged stores that a storage node put aside"),
    VerbPath("DELETE", "/nodes/{node}/aside/{name}", "store aside remove", "Delete a store that was put aside"),
    VerbPath("GET", "/membership", "membership list", "Members as gossip sees them"),
    VerbPath("GET", "/membership/keys", "membership keys list", "Who holds and who seals with which key of gossip"),
    VerbPath("POST", "/membership/keys", "membership keys install", "Let every member learn a key of gossip"),
    VerbPath("POST", "/membership/keys/{key_id}/use", "membership keys use", "Let every member seal with a key"),
    VerbPath("DELETE", "/membership/keys/{key_id}", "membership keys remove", "Let every member forget a key"),
    VerbPath("GET", "/users", "user list", "Users of the cluster, by name"),
    VerbPath("GET", "/users/{user}", "user show", "Roles, groups and state of one user"),
    VerbPath("POST", "/users", "user add", "Add a user; `record` is what the policy keeps of a password"),
    VerbPath("PATCH", "/users/{user}", "user change", "Other roles, groups or limits; what is not named stays"),
    VerbPath("PUT", "/users/{user}/password", "user password", "Another password, as its record; connections end"),
    VerbPath("POST", "/users/{user}/disable", "user disable", "Let a user in no more, and end its connections"),
    VerbPath("POST", "/users/{user}/enable", "user enable", "Let a disabled user in again"),
    VerbPath("DELETE", "/users/{user}", "user delete", "Remove a user"),
    VerbPath("GET", "/roles", "role list", "Roles, by name"),
    VerbPath("GET", "/roles/{role}", "role show", "The rules of one role"),
    VerbPath("PUT", "/roles/{role}", "role put", "Make a role, or give it other rules and limits"),
    VerbPath("DELETE", "/roles/{role}", "role delete", "Remove a role that nobody has"),
    VerbPath("GET", "/groups", "group list", "Groups, by name"),
    VerbPath("GET", "/groups/{group}", "group show", "The roles of one group"),
    VerbPath("PUT", "/groups/{group}", "group put", "Make a group, or give it other roles and limits"),
    VerbPath("DELETE", "/groups/{group}", "group delete", "Remove a group that nobody is in"),
    VerbPath("GET", "/bans", "ban list", "Bans"),
    VerbPath("POST", "/bans", "ban add", "Keep somebody out, and end its connections"),
    VerbPath("DELETE", "/bans", "ban del", "Take a ban back"),
    VerbPath("POST", "/revocations", "revoke", "Make a client's certificate or token void"),
    VerbPath("DELETE", "/revocations", "unrevoke", "Take a revocation back"),
    VerbPath("GET", "/policy", "policy status", "Whether an epoch of the policy is in force everywhere"),
    VerbPath("GET", "/tokens", "token list", "Tokens: name, role, end"),
    VerbPath("POST", "/tokens", "token create", "Make a token, which is told this once"),
    VerbPath("DELETE", "/tokens/{name}", "token revoke", "Make a token void"),
)


def own_fields(row: VerbPath) -> list[msgspec.structs.FieldInfo]:
    """Return the arguments of a verb that stand in the query or in the body."""
    in_path = set(re.findall(r"\{(\w+)\}", row.path))
    fields: Any = msgspec.structs.fields(VERBS[row.verb].arguments)
    return [field for field in fields if field.name not in in_path and field.name != "dry_run"]


def at_node(row: VerbPath) -> bool:
    """Return whether the path names the node that is asked, and not an argument of the verb."""
    return "{node}" in row.path and "node" not in VERBS[row.verb].arguments.__struct_fields__


def call_of(verb: str, arguments: Mapping[str, Any]) -> ApiCall | None:
    """Return the request that asks for a verb, None where the API has no path of it."""
    row = next((row for row in PATHS if row.verb == verb), None)
    if row is None:
        return None
    path = re.sub(r"\{(\w+)\}", lambda found: quote(str(arguments[found[1]]), safe=""), row.path)
    own = {field.name: arguments[field.name] for field in own_fields(row) if field.name in arguments}
    query = [("dry_run", "true")] if arguments.get("dry_run") else []
    if row.method in BODIES:
        return ApiCall(row.method, path, query, own if own_fields(row) else None)
    for name, value in own.items():
        values = value if isinstance(value, list | tuple) else [value]
        query += [(name, _text(one)) for one in values if one is not None]
    return ApiCall(row.method, path, query)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
