"""Processes beside the tiers that no promise depends on: they come in as MQTT clients, or as followers of the map.

Owns: the trio shell of the MQTT client session (``client``), the addresses of brokers, the ways of its bytes (TCP, TLS,
WebSocket), the delays between attempts, the spool (``spool``, ``spool_thread``). Each kind of gateway is a sub-room.

Doors: ``client.GatewayClient``, ``spool_thread.Spool``; the sub-rooms' services, which ``stratamq/`` starts.

Always holds: nothing that the ring places lies here, and no node waits for a gateway: killing one at any moment loses
no acknowledged message. A source is acknowledged only after its sink has taken the message. Whatever a gateway must not
lose lies in a durable session of a broker, or in its spool. Sub-rooms do not import one another.

May import: membership, access, wire, mqtt, conf; no tier imports it, nor it a tier.
"""
