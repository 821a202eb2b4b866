"""Limits: rates, amounts, and temporary refusals.

Owns: Token buckets, penalties for flapping and failed logins, takeovers, bans, circuit breaker and response cache of
callouts, and daily quotas.

Entry points: One class a file; ``addresses`` maps an address to its key and names those that are never counted.

Invariant: Each table is bounded, evicts the oldest entries and counts them. Unauthenticated behavior never causes a
penalty for a user name or a client ID at all addresses. No clock is read here.

May import: nothing of access.
"""
