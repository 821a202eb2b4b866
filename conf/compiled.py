"""The one list of compiled modules, and the refusal to start without them.

The build script reads ``COMPILED_MODULES``; services call ``require_compiled`` before they open a socket. Uncompiled
modules run only when ``STRATAMQ_PURE=1`` (tests and debugging): a broker that silently fell back would be 10 to 50
times slower than its operator planned for.
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
    "storage.store.row_table",
    "storage.messages.plain_acks",
    "storage.messages.plain_messages",
    "edge.hot.buffers",
    "edge.hot.counters",
    "edge.hot.durations",
    "edge.hot.round_trips",
    "edge.hot.purses",
    "edge.hot.read_ahead",
    "edge.hot.state",
    "edge.hot.output",
    "edge.hot.traces",
    "edge.hot.notes",
    "edge.hot.routes",
    "edge.hot.memory",
    "edge.hot.encode",
    "edge.hot.records",
    "edge.hot.held_copies",
    "edge.hot.outbound_identifiers",
    "edge.hot.deliver",
    "edge.hot.batches",
    "edge.hot.outboxes",
    "edge.hot.refused_topics",
    "edge.hot.origins",
    "edge.hot.picks",
    "edge.hot.ack_rows",
    "edge.hot.told_origins",
    "edge.hot.excess",
    "edge.hot.acks",
    "edge.hot.parked_input",
    "edge.hot.pushes",
    "edge.hot.fanout",
    "edge.hot.forwarded",
    "edge.hot.verdicts",
    "edge.hot.inbound",
    "edge.hot.parse",
    "edge.hot.connections",
    "edge.hot.publications",
    "edge.hot.peering",
    "edge.hot.engine",
    "edge.hot.pacing",
    "edge.hot.descriptors",
    "edge.hot.sockets",
    "edge.hot.loop",
)


class NotCompiled(RuntimeError):
    """A module of the hot path runs as plain Python although STRATAMQ_PURE is not set."""


def require_compiled(modules: tuple[str, ...] = COMPILED_MODULES) -> None:
    """Import every module of the list and check that the compiled form was loaded.

    Raises:
        NotCompiled: Names the modules that are missing and the command that builds them.
    """
    if os.environ.get("STRATAMQ_PURE") == "1":
        return
    pure = [name for name in modules if str(importlib.import_module(name).__file__).endswith(".py")]
    if pure:
        missing = ", ".join(pure)
        raise NotCompiled(f"not compiled: {missing}; run `make setup`, or set STRATAMQ_PURE=1 for a slow debugging run")
