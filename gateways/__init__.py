"""Processes outside the tiers: each connects as an MQTT client or follows the map.

Owns: the trio shell of the MQTT client session (``client``), addresses of brokers, transports (TCP, TLS, WebSocket),
retry delays, and the spool (``spool``, ``spool_thread``). Each kind of gateway is a sub-package.
Entry points: ``client.GatewayClient``, ``spool_thread.Spool``; services of the sub-packages, started by ``stratamq/``.
Invariant: no cluster state is stored here, and no node waits for a gateway. Killing one loses no acknowledged message:
a source is acknowledged only after its sink has accepted the message. State that must survive is in a durable session
of a broker, or in the spool. Sub-packages do not import one another.
May import: membership, access, wire, mqtt, conf; no tier imports it, and it imports no tier.
"""
