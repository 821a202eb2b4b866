"""The list of compiled modules, and the check at start.

The build script reads ``COMPILED_MODULES``; services call ``require_compiled`` before they open a socket. Uncompiled
modules run only with ``STRATAMQ_PURE=1`` (tests and debugging): a silent fallback would be 10 to 50 times slower than
planned.
"""

import importlib
import os

__all__ = ["COMPILED_MODULES", "NotCompiled", "require_compiled"]

COMPILED_MODULES: tuple[str, ...] = (
    "mqtt.topic_trie",
    "mqtt.packet_identifiers",
    "wire.messages.octets",
    "storage.state.session_window",
    "storage.state.durable_sessions",
    "storage.state.row_lists",
    "storage.store.memtable",
    "storage.messages.fast_path_acks",
    "storage.messages.fast_path_publish",
    "edge.loop.buffers",
    "edge.loop.counters",
    "edge.loop.durations",
    "edge.loop.round_trips",
    "edge.loop.shared_rate_limits",
    "edge.loop.read_ahead",
    "edge.loop.state",
    "edge.loop.output",
    "edge.loop.traces",
    "edge.loop.notes",
    "edge.loop.routes",
    "edge.loop.memory",
    "edge.loop.encode",
    "edge.loop.records",
    "edge.loop.held_copies",
    "edge.loop.outbound_identifiers",
    "edge.loop.deliver",
    "edge.loop.batches",
    "edge.loop.outboxes",
    "edge.loop.refused_topics",
    "edge.loop.origins",
    "edge.loop.picks",
    "edge.loop.ack_rows",
    "edge.loop.reported_origins",
    "edge.loop.excess",
    "edge.loop.acks",
    "edge.loop.parked_input",
    "edge.loop.pushes",
    "edge.loop.fanout",
    "edge.loop.forwarded",
    "edge.loop.verdicts",
    "edge.loop.inbound",
    "edge.loop.parse",
    "edge.loop.connections",
    "edge.loop.publications",
    "edge.loop.peering",
    "edge.loop.broker_loop",
    "edge.loop.pacing",
    "edge.loop.descriptors",
    "edge.loop.sockets",
    "edge.loop.loop",
)


class NotCompiled(RuntimeError):
    """A module of the hot path is not compiled although STRATAMQ_PURE is not set."""


def require_compiled(modules: tuple[str, ...] = COMPILED_MODULES) -> None:
    """Import every module of the list and check that its compiled form was loaded.

    Raises:
        NotCompiled: Names the missing modules and the build command.
    """
    if os.environ.get("STRATAMQ_PURE") == "1":
        return
    pure = [name for name in modules if str(importlib.import_module(name).__file__).endswith(".py")]
    if pure:
        missing = ", ".join(pure)
        raise NotCompiled(f"not compiled: {missing}; run `make setup`, or set STRATAMQ_PURE=1 for a slow debugging run")
