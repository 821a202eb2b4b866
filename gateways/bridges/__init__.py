"""Bridges between a cluster and everything else: each is a source, rules, and a sink, with one pump between them.

Owns: the pump, the rules and templates, the kinds of sources and sinks, the process that runs bridges.

Doors: ``service.main``; ``checking`` for `bridge check` and `bridge try`.

Always holds: a source is acknowledged after the sink has taken the message, or the dead letter has, never before.
Nothing is dropped without a counter that names the reason. One bridge that fails or waits does not slow another. No
secret stands on a command line, in a log line or in an error.

May import: the files of ``gateways/`` beside the sub-rooms, wire, mqtt, conf; no other sub-room of ``gateways/``.
"""
