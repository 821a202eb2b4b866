"""One door for many edges: ``stratamq balance``.

Owns: which edges are candidates (``directory``), which of them gets a client (``choice``), the first bytes of a
connection (``first_bytes``), and the ways to an edge: ``hand_over``, ``redirect``, ``relay``. ``forwarding`` tries them
in order, ``doors`` listens, ``following`` keeps the map, ``render`` writes configurations of other balancers.

Doors: ``service.main``, ``render.render``, ``status.read_status``.

Always holds: only the map makes a candidate, gossip orders them at most. A client that was taken has exactly one edge.
The balancer's death ends relayed connections and nothing else.

May import: gateways, membership, access, wire, mqtt, conf.
"""
