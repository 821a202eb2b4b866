"""The cluster's policy at a router: its log entries, followers, queries about users, and pending commands.

Owns: the policy's machine beside the map's, and the nodes that still act by an older policy epoch.

Entry points: ``policy_service.PolicyService`` is the interface for a router's core. ``log_entry`` decodes the log.
``router_snapshot`` stores both machines.

Invariant: every router reads an entry alike as a map or policy command. A command that revokes rights is not settled
while a node may act by the former policy.

May import: access.policy, router.map.
"""
