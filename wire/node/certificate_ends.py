"""Ends of the certificates that a node shows: seconds on the metrics page, and a warning 30, 7 and 1 days before.

A part of a reload, so that what is told is of the certificates in force and not of files that nobody has taken up yet.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conf.errors import UserError
from conf.events import say
from conf.metrics import Metrics
from conf.settings import EdgeConfig, NodeConfig

__all__ = ["CertificateEnds", "register_certificate_ends"]

logger = logging.getLogger(__name__)

WARN_DAYS = (30, 7, 1)
DAY_S = 86_400.0

Ends = dict[str, tuple[Path, float]]  # by name: the file, and seconds since the epoch


class CertificateEnds:
    """Certificates of one node: ``links``, and those of listeners by name.

    Args:
        config: At the start.
        utc: Returns seconds since the epoch.
    Raises:
        UserError: A certificate cannot be read.
    """

    settings: Sequence[str] = ()  # its files are other parts' settings

    def __init__(self, config: NodeConfig, utc: Callable[[], float] = time.time) -> None:
        self._utc = utc
        self._ends = self.load(config)
        self._warned: dict[str, float] = {}  # days of the last warning, by name

    def load(self, config: NodeConfig) -> Ends:
        """Read when each certificate ends.

        Raises:
            UserError: One cannot be read.
        """
        named = {} if config.node.plaintext_links else {"links": config.node.certificate}
        if isinstance(config, EdgeConfig):
            named |= {one.name: one.certificate for one in config.edge.listeners if one.tls}
        return {name: (path, _end_of(path)) for name, path in named.items() if path is not None}

    def current(self) -> Ends:
        """Return what is in force."""
        return self._ends

    def difference(self, loaded: Ends) -> list[str]:
        """Return nothing: who takes up the files says what differs."""
        del loaded
        return []

    def put(self, loaded: Ends) -> None:
        """Tell of these from now on."""
        self._warned = {name: days for name, days in self._warned.items() if loaded.get(name) == self._ends.get(name)}
        self._ends = loaded
        self.take(None)

    # -- between reloads

    def look(self) -> None:
        """Return nothing: the files do not count, only what is in force."""

    def take(self, looked: object) -> None:
        """Warn of each certificate that has come to another of the three distances from its end."""
        del looked
        for name, left_s in self.seconds_left.items():
            within = [days for days in WARN_DAYS if left_s <= days * DAY_S]
            if within and within[-1] < self._warned.get(name, float("inf")):
                self._warned[name] = within[-1]
                days = max(0, int(left_s // DAY_S))
                say(logger, "certificate.ends", certificate=self._ends[name][0], of=name, days=days)

    @property
    def not_after_utc(self) -> dict[tuple[str, ...], float]:
        """End of each certificate by name, in seconds since 1970."""
        return {(name,): end for name, (_, end) in self._ends.items()}

    @property
    def seconds_left(self) -> dict[str, float]:
        """Seconds until each certificate ends, by name; negative when it has."""
        now = self._utc()
        return {name: end - now for name, (_, end) in self._ends.items()}


def register_certificate_ends(metrics: Metrics, ends: CertificateEnds) -> None:
    """Show them on the metrics page."""
    metrics.gauge(
        "tls_cert_not_after_seconds",
        "When a certificate of this node ends, in seconds since 1970: that of its links, and of each listener by name.",
        lambda: ends.not_after_utc,
        ("listener",),
    )
    metrics.gauge(
        "certificate_seconds_left",
        "Seconds until a certificate of this node ends: the one of its links, and of each listener by name.",
        lambda: {(name,): left for name, left in ends.seconds_left.items()},
        ("certificate",),
    )


def _end_of(path: Path) -> float:
    from cryptography import x509  # a node without TLS does without it

    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except OSError as error:
        raise UserError(f"certificate {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"certificate {path} is not readable as PEM: {error}") from None
