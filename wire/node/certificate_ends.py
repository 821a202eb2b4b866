"""Expiry of a node's own and trusted certificates: seconds as metrics, a warning 30, 7 and 1 days before.

Of a chain, and of a file of authorities, the first expiry counts, because its dependents are refused from then on. For
authorities that verify other servers (``http_ca``, ``token_jwks_ca``) the last one counts, because the file may hold
all authorities of a system. It is a part of a reload, so the metrics show the certificates in effect and not files that
were not loaded yet.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from conf.events import say
from conf.metrics import Metrics
from conf.settings import AdminConfig, BalanceConfig, EdgeConfig, NodeConfig

__all__ = ["CertificateEnds", "register_certificate_ends"]

logger = logging.getLogger(__name__)

WARN_DAYS = (30, 7, 1)
DAY_S = 86_400.0

Ends = dict[str, tuple[Path, float]]  # by name: the file, and seconds since the epoch
Choice = Callable[[Iterable[float]], float]


class CertificateEnds:
    """Certificates of one node: ``links``, listeners by name, and a dot with the setting for others.

    Args:
        config: At the start.
        utc: Returns seconds since the epoch.
    """

    settings: Sequence[str] = ()  # its files belong to other parts' settings

    def __init__(self, config: NodeConfig, utc: Callable[[], float] = time.time) -> None:
        self._utc = utc
        self._ends = self.load(config)
        self._warned: dict[str, float] = {}  # days of the last warning, by name

    def load(self, config: NodeConfig) -> Ends:
        """Read the expiry of each certificate."""
        read = [(name, path, choose, _ends_of(path)) for name, path, choose in _named(config) if path is not None]
        return {name: (path, choose(ends)) for name, path, choose, ends in read if ends}

    def current(self) -> Ends:
        """Return the expiries in effect."""
        return self._ends

    def difference(self, loaded: Ends) -> list[str]:
        """Return no lines: the parts that own the files report differences."""
        del loaded
        return []

    def put(self, loaded: Ends) -> None:
        """Put expiries into effect."""
        self._warned = {name: days for name, days in self._warned.items() if loaded.get(name) == self._ends.get(name)}
        self._ends = loaded
        self.take(None)

    # -- between reloads

    def look(self) -> None:
        """Return None: only loaded certificates count, not changed files."""

    def take(self, looked: object) -> None:
        """Warn of each certificate that has reached the next of the three distances from its expiry."""
        del looked
        for name, left_s in self.seconds_left.items():
            within = [days for days in WARN_DAYS if left_s <= days * DAY_S]
            if within and within[-1] < self._warned.get(name, float("inf")):
                self._warned[name] = within[-1]
                days = max(0, int(left_s // DAY_S))
                say(logger, "certificate.ends", certificate=self._ends[name][0], of=name, days=days)

    @property
    def not_after_utc(self) -> dict[tuple[str, ...], float]:
        """Expiry of each certificate by name, in seconds since 1970."""
        return {(name,): end for name, (_, end) in self._ends.items()}

    @property
    def seconds_left(self) -> dict[str, float]:
        """Seconds until each certificate expires, by name; negative afterwards."""
        now = self._utc()
        return {name: end - now for name, (_, end) in self._ends.items()}


def register_certificate_ends(metrics: Metrics, ends: CertificateEnds) -> None:
    """Add the expiries to the metrics page."""
    metrics.gauge(
        "tls_cert_not_after_seconds",
        "Expiry of a certificate, in seconds since 1970: of links, of each listener, of authorities after a dot.",
        lambda: ends.not_after_utc,
        ("listener",),
    )
    metrics.gauge(
        "certificate_seconds_left",
        "Seconds until a certificate expires: of links, of each listener by name, of authorities after a dot.",
        lambda: {(name,): left for name, left in ends.seconds_left.items()},
        ("certificate",),
    )


def _named(config: NodeConfig) -> list[tuple[str, Path | None, Choice]]:
    """Return name, file and decisive expiry of all certificates in a node's settings."""
    found: list[tuple[str, Path | None, Choice]] = []
    if not config.node.plaintext_links:
        found += [("links", config.node.certificate, min), ("links.authority", config.node.authority, min)]
    if isinstance(config, EdgeConfig):
        for one in config.edge.listeners:
            if one.tls:
                found += [(one.name, one.certificate, min), (f"{one.name}.client_ca", one.client_ca, min)]
            found += [
                (f"{one.name}.http_certificate", one.http_certificate, min),
                (f"{one.name}.http_ca", one.http_ca, max),
                (f"{one.name}.token_jwks_ca", one.token_jwks_ca, max),
            ]
    if isinstance(config, BalanceConfig):
        for door in config.balance.listeners:
            found += [(door.name, door.certificate, min), (f"{door.name}.client_ca", door.client_ca, min)]
    if isinstance(config, AdminConfig):
        found += [("admin", config.admin.certificate, min), ("admin.client_ca", config.admin.client_ca, min)]
    return found


def _ends_of(path: Path) -> list[float]:
    """Return the expiry of each certificate of a file; none if it is unreadable, which its owner reports."""
    from cryptography import x509  # not loaded without TLS

    try:
        return [one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(path.read_bytes())]
    except (OSError, ValueError):
        return []
