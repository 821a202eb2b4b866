"""Limits: how often, how much, and who is kept out for a while.

Owns: Token buckets, penalties for flapping and failed logins, takeovers, bans, the breaker and the cache of answers in
front of a server that is asked, and daily quotas.

Doors: One class a file; ``addresses`` says which key an address counts under and which addresses are never counted.

Always holds: Each table has a bound, drops the oldest beyond it and counts what it drops. A stranger's conduct is never
held against a user name or a client ID at all addresses. Nothing here reads a clock.

May import: nothing of access.
"""
