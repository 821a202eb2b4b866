"""Metrics page, health page and signal handling of a gateway process."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from conf.events import say
from conf.metrics import Metrics, bind_health, bind_metrics, page_hosts, prepare_page, serve_metrics
from conf.node_settings import MetricsSettings
from wire.node.signals import obey_signals, state_lines

__all__ = ["open_pages"]

logger = logging.getLogger(__name__)


async def open_pages(
    nursery: trio.Nursery,
    settings: MetricsSettings,
    metrics: Metrics,
    stopping: trio.Event,
    title: str,
    reload: Callable[[], None] | None = None,
) -> dict[str, object]:
    """Serve the pages and handle signals until the nursery is cancelled.

    Args:
      stopping: Set at the first SIGTERM or SIGINT; the second cancels the nursery.
      title: Heading of the SIGUSR1 output.
      reload: Action of SIGHUP; None: it logs that settings need a restart.

    Returns:
      The addresses of the pages.

    Raises:
      UserError: An address cannot be bound.
    """
    addresses: dict[str, object] = {}
    signals: dict[str, int] = {}
    page = bind_metrics(settings) if settings.enabled else None
    prepare_page(settings)
    for name, listener in (("metrics", page), ("health", bind_health(settings))):
        if listener is not None:
            host, port = listener.getsockname()[:2]
            addresses[name] = f"{host}:{port}"
            hosts = page_hosts(settings) if name == "metrics" else None
            nursery.start_soon(serve_metrics, metrics, listener, name == "health", hosts)
    await nursery.start(
        obey_signals,
        stopping,
        nursery.cancel_scope.cancel,
        signals,
        lambda: state_lines([title], metrics),
        reload or (lambda: say(logger, "gateway.settings_at_restart", title=title)),
    )
    metrics.counter(
        "signals_total",
        "Received signals, by name.",
        lambda: {(name,): float(count) for name, count in signals.items()},
        ("signal",),
    )
    return addresses
