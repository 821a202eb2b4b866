"""User properties by which an edge names the publisher of a message; no client can write them.

An edge removes them from all messages of clients, and adds them on the topics of ``edge.publisher_properties``. A
client with ``ASKS`` in its CONNECT finds these filters in CONNACK. Decision: docs/adr/0057-who-published.md.
"""

__all__ = ["ASKS", "CLIENT_ID", "NAMES", "USER_NAME", "VOUCHED_FILTER"]

CLIENT_ID, USER_NAME = "stratamq-client-id", "stratamq-user-name"  # edge/loop/encode.py knows them by length and begin
NAMES = frozenset((CLIENT_ID, USER_NAME))
VOUCHED_FILTER = "stratamq-publisher"  # of CONNACK: a filter of topics with named publishers
ASKS = (VOUCHED_FILTER, "1")
