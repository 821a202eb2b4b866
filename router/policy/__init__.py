"""The cluster's policy at a router: its entries in the log, its followers, answers about users, and verbs that wait.

Owns: The machine of the policy beside that of the map, and who still acts by an older epoch of it.

Doors: ``policy_desk.PolicyDesk`` is what a router's core has; ``log_entry`` reads the log; ``router_snapshot``
keeps both machines.

Always holds: An entry is about the map or about the policy, for every router alike. No verb that takes rights has
settled while a node may act by what was before.

May import: access.policy, router.map.
"""
