"""Revocation lists of a node's links: a part of a reload, checked between reloads, with metrics."""

import time
from collections.abc import Callable
from typing import TypeAlias

from conf.metrics import Metrics
from conf.node_settings import NodeSettings
from wire.links.revoked import PeerRevocationLists, RevokedPeers
from wire.node.revocation_files import RevocationFiles

__all__ = ["LinkFiles", "ReadLists", "link_lists", "register_link_lists"]

ReadLists = Callable[[NodeSettings], PeerRevocationLists | None]
LinkFiles: TypeAlias = RevocationFiles[NodeSettings, PeerRevocationLists]


def link_lists(
    peers: RevokedPeers, node: NodeSettings, read: ReadLists, utc: Callable[[], float] = time.time
) -> LinkFiles:
    """Return the lists of one node's links, and put them into effect at ``peers``.

    Raises:
        UserError: A file is unusable at the start.
    """
    return RevocationFiles("links", ("node.crl_files",), node, lambda config: config.node, read, peers.put, utc)


def register_link_lists(metrics: Metrics, files: LinkFiles, peers: RevokedPeers) -> None:
    """Register the metrics of the lists, and fail ``/readyz`` while they are stale or unreadable."""
    metrics.check("link_lists", lambda: not files.problem())
    metrics.gauge(
        "link_lists_current",
        "1 while the revocation lists of links match their files and are not stale; 1 without lists.",
        lambda: float(not files.problem()),
    )
    metrics.gauge(
        "link_lists_seconds_left",
        "Seconds until the first revocation list of links is stale; 0 without lists, negative afterwards.",
        lambda: files.seconds_left,
    )
    metrics.gauge(
        "link_lists_revoked",
        "Revoked certificates in the lists of links.",
        lambda: 0.0 if files.lists is None else float(files.lists.revoked),
    )
    metrics.counter(
        "link_lists_looks_total",
        "Reloads of changed revocation lists of links between reloads of the settings, by outcome.",
        lambda: {(outcome,): float(count) for outcome, count in files.looks.items()},
        ("outcome",),
    )
    metrics.counter(
        "links_revoked_total",
        "Links refused at the handshake or cut later because of a revoked certificate or a stale list.",
        lambda: {("refused",): float(peers.refused), ("cut",): float(peers.cut)},
        ("how",),
    )
