"""Load balancer in front of the edges: ``stratamq balance``.

Owns: the candidate edges (``directory``), the choice of one (``choice``), the first bytes of a connection
(``first_bytes``), and the forwarding methods: ``hand_over``, ``redirect``, ``relay``. ``forwarding`` tries them
in order. ``balancer_listener`` accepts clients, ``following`` keeps the map, ``render`` writes other balancers' files.
Entry points: ``service.main``, ``render.render``, ``status.read_status``.
Invariant: only the map adds candidates; gossip only orders them. An accepted client has exactly one edge.
If the balancer dies, only relayed connections end.
May import: gateways, membership, access, wire, mqtt, conf.
"""
