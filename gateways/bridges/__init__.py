"""Bridges between a cluster and other systems: each has a source, rules and a sink, connected by one pump.

Owns: the pump, the rules and templates, the kinds of sources and sinks, the process that runs bridges.
Entry points: ``service.main``; ``service.check`` and ``rule_trial`` for `bridge check` and `bridge try`.
Invariant: a source is acknowledged only after the sink, or the dead letter, has accepted the message. Each dropped
message is counted with its reason. A failed or slow bridge does not delay another one. No secret appears on a command
line, in a log line or in an error.
May import: the files of ``gateways/`` outside the sub-packages, wire, mqtt, conf; no other sub-package.
"""
