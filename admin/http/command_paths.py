"""Paths of the API that run a verb: one row each. Arguments, ranges and roles are those of the verb.

A reading verb takes its arguments from the query string, a changing one from the JSON body (except DELETE), without
those in the path. ``{node}`` selects the target node if the verb has no such argument. The table of verbs authorizes,
here and again at the node.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from access.operators.commands import VERBS
from admin.api import ApiCall

__all__ = ["BODIES", "PATHS", "VerbPath", "at_node", "call_of", "own_fields"]

BODIES = ("POST", "PUT", "PATCH")  # methods with arguments in the body


class VerbPath(NamedTuple):
    """``GET /users/{user}`` is ``user show``; braces name arguments of the verb."""

    method: str
    path: str
    verb: str
    summary: str


PATHS = (
    VerbPath("GET", "/cluster", "cluster status", "Nodes, leases, epochs, copies"),
    VerbPath("GET", "/nodes", "node list", "Every node: tier, state, release, clients, addresses"),
    VerbPath("POST", "/nodes/{node}/drain", "node drain", "Move an edge's clients away, or stop placing on a node"),
    VerbPath("POST", "/nodes/{node}/undrain", "node undrain", "Use a drained node again"),
    VerbPath("POST", "/nodes/{node}/drain-clients", "client drain", "How a drained edge disconnects its clients"),
    VerbPath("DELETE", "/nodes/{node}", "cluster forget", "Remove a node that will not return"),
    VerbPath("DELETE", "/clients/{client_id}", "client kick", "Close a client's connection; its session stays"),
    VerbPath("POST", "/messages", "msg send", "Publish one message as an operator; the payload in base64"),
    VerbPath("POST", "/traces", "trace start", "Record the events of a client, topic, network or message"),
    VerbPath("DELETE", "/traces/{trace}", "trace stop", "End a trace; its events stay readable for a while"),
    VerbPath("POST", "/retained/clear", "retained clear", "Delete the retained messages of some topics"),
    VerbPath("DELETE", "/sessions/{client_id}", "session delete", "Delete the session of a disconnected client"),
    VerbPath("DELETE", "/sessions/{client_id}/queue", "queue purge", "Empty the queue of a session"),
    VerbPath("POST", "/sessions/{client_id}/expire", "session expire", "Expire a session now"),
    VerbPath(
        "POST",
        "/listeners/{listener}/pause",
        "listener pause",
        "Accept no new clients at a listener; connected ones stay",
    ),
    VerbPath("POST", "/listeners/{listener}/resume", "listener resume", "Accept clients at a paused listener again"),
    VerbPath("POST", "/reload", "reload", "Reload certificates, lists and settings, all or nothing"),
    VerbPath("POST", "/raft/transfer", "cluster transfer", "Transfer the leadership to another router"),
    VerbPath("POST", "/raft/voters/{node}", "cluster join", "Make a waiting router a voter"),
    VerbPath("DELETE", "/raft/voters/{node}", "cluster leave", "Remove a router from the group"),
    VerbPath("GET", "/ring", "ring show", "Partitions and shards: primary, copies, epochs"),
    VerbPath("GET", "/ring/map", "ring export", "The whole map"),
    VerbPath("GET", "/ring/plan", "ring plan", "What a rebalance would move"),
    VerbPath("GET", "/ring/status", "ring status", "The running or the last rebalance"),
    VerbPath("GET", "/ring/verify", "ring verify", "Check the map's invariants"),
    VerbPath("GET", "/ring/explain", "ring explain", "The place of a client identifier or a topic, with reasons"),
    VerbPath("POST", "/ring/rebalance", "ring rebalance", "Move partitions and shards to their places on the ring"),
    VerbPath("POST", "/ring/pause", "ring pause", "Start no further move"),
    VerbPath("POST", "/ring/resume", "ring resume", "Resume after a pause"),
    VerbPath("POST", "/ring/abort", "ring abort", "Stop: a started move is reverted, or finished if that is nearer"),
    VerbPath("POST", "/ring/nodes/{node}/add", "ring add", "Place on a node"),
    VerbPath("POST", "/ring/nodes/{node}/drain", "ring drain", "Empty a node"),
    VerbPath("DELETE", "/ring/nodes/{node}", "ring remove", "Remove a node that was drained and stopped"),
    VerbPath("POST", "/ring/delegations", "ring delegate", "Place a topic subtree in its own jurisdiction"),
    VerbPath("DELETE", "/ring/delegations", "ring undelegate", "Remove a delegation"),
    VerbPath("GET", "/ring/lost", "ring lost", "Remaining data of partitions without a complete copy"),
    VerbPath(
        "POST", "/ring/recover", "ring recover", "Serve the data that a node has of a partition; the rest is lost"
    ),
    VerbPath("GET", "/nodes/{node}/copies", "store copies", "Copies of partitions as a storage node has them"),
    VerbPath("GET", "/nodes/{node}/export", "store export status", "The export of a storage node"),
    VerbPath("DELETE", "/nodes/{node}/export", "store export cancel", "Stop the export of a storage node"),
    VerbPath("GET", "/nodes/{node}/aside", "store aside", "Quarantined stores of a storage node"),
    VerbPath("DELETE", "/nodes/{node}/aside/{name}", "store aside remove", "Delete a quarantined store"),
    VerbPath("GET", "/membership", "membership list", "Members according to gossip"),
    VerbPath("GET", "/membership/keys", "membership keys list", "Gossip keys, with the members that hold and use each"),
    VerbPath("POST", "/membership/keys", "membership keys install", "Install a gossip key at every member"),
    VerbPath(
        "POST", "/membership/keys/{key_id}/use", "membership keys use", "Encrypt with a gossip key at every member"
    ),
    VerbPath("DELETE", "/membership/keys/{key_id}", "membership keys remove", "Remove a gossip key at every member"),
    VerbPath("GET", "/users", "user list", "Users of the cluster, by name"),
    VerbPath("GET", "/users/{user}", "user show", "Roles, groups and state of one user"),
    VerbPath("POST", "/users", "user add", "Add a user; `record` is the stored form of a password"),
    VerbPath("PATCH", "/users/{user}", "user change", "Change roles, groups or limits; others stay"),
    VerbPath(
        "PUT", "/users/{user}/password", "user password", "Set another password, as its record; connections are closed"
    ),
    VerbPath("POST", "/users/{user}/disable", "user disable", "Disable a user, and close its connections"),
    VerbPath("POST", "/users/{user}/enable", "user enable", "Enable a disabled user"),
    VerbPath("DELETE", "/users/{user}", "user delete", "Remove a user"),
    VerbPath("GET", "/roles", "role list", "Roles, by name"),
    VerbPath("GET", "/roles/{role}", "role show", "The rules of one role"),
    VerbPath("PUT", "/roles/{role}", "role put", "Create or replace a role"),
    VerbPath("DELETE", "/roles/{role}", "role delete", "Remove a role without users"),
    VerbPath("GET", "/groups", "group list", "Groups, by name"),
    VerbPath("GET", "/groups/{group}", "group show", "The roles of one group"),
    VerbPath("PUT", "/groups/{group}", "group put", "Create or replace a group"),
    VerbPath("DELETE", "/groups/{group}", "group delete", "Remove a group without members"),
    VerbPath("GET", "/bans", "ban list", "Bans"),
    VerbPath("POST", "/bans", "ban add", "Ban a client, user, address or certificate, and close its connections"),
    VerbPath("DELETE", "/bans", "ban del", "Remove a ban"),
    VerbPath("POST", "/revocations", "revoke", "Revoke a client's certificate or token"),
    VerbPath("DELETE", "/revocations", "unrevoke", "Remove a revocation"),
    VerbPath("GET", "/policy", "policy status", "Whether a policy epoch is settled"),
    VerbPath("GET", "/tokens", "token list", "Tokens: name, role, expiry"),
    VerbPath("POST", "/tokens", "token create", "Create a token; it is returned only once"),
    VerbPath("DELETE", "/tokens/{name}", "token revoke", "Revoke a token"),
)


def own_fields(row: VerbPath) -> list[msgspec.structs.FieldInfo]:
    """Return the arguments of a verb in the query string or the body."""
    in_path = set(re.findall(r"\{(\w+)\}", row.path))
    fields: Any = msgspec.structs.fields(VERBS[row.verb].arguments)
    return [field for field in fields if field.name not in in_path and field.name != "dry_run"]


def at_node(row: VerbPath) -> bool:
    """Return whether the path names the target node and not an argument of the verb."""
    return "{node}" in row.path and "node" not in VERBS[row.verb].arguments.__struct_fields__


def call_of(verb: str, arguments: Mapping[str, Any]) -> ApiCall | None:
    """Return the request that runs a verb, None if the API has no path for it."""
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
