"""The services for the jobs of logins, each with its queue: hashes, keys of tokens, callouts and OCSP."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from conf.metrics import Metrics
from conf.settings import EdgeSettings
from edge.login.auth_jobs import AuthJobs
from edge.login.chains import Chains
from edge.login.hash_worker_service import HashWorker
from edge.login.http_callouts import HttpCallouts
from edge.login.key_refresh_service import KeyRefresh
from edge.login.logins import ClientLogins
from edge.login.ocsp_requests import ocsp_questions
from edge.login.server_urls import ServerUrls

__all__ = ["LoginShells"]

WAITING_MAX = 1_000  # logins that wait for a server, of each kind; more get 0x89, fairly by address


class LoginShells:
    """The services of one edge.

    Args:
        edge: Its settings.
        chains: Their keys and response caches.
        logins: Receives the results.
        kick: Wakes the loop after a login was queued.

    Attributes:
        runs: To be run until cancelled.
        reloads: Parts of a reload.

    Raises:
        UserError: An extra is not installed, or a file is unusable.
    """

    def __init__(self, edge: EdgeSettings, chains: Chains, logins: ClientLogins, kick: Callable[[], None]) -> None:
        desks = {kind: AuthJobs(WAITING_MAX) for kind in ("jwks", "http", "ocsp")}
        desks["hash"] = AuthJobs(edge.hashes_waiting_max)
        listeners = edge.listeners
        hashes = HashWorker(desks["hash"], logins.done)
        with_keys = [listener for listener in listeners if listener.token_jwks_url]
        keys = KeyRefresh(with_keys, chains.sources, desks["jwks"], logins.done)
        asked = [listener for listener in listeners if listener.http_url]
        self._callouts = HttpCallouts(asked, chains.answers, desks["http"], logins.done)
        self._ocsp = ocsp_questions([one for one in listeners if one.ocsp_url], desks["ocsp"], logins.done)
        self._chains = chains
        came = {
            "hash": hashes.came,
            "jwks": keys.came,
            "http": self._callouts.asking.came,
            "ocsp": self._ocsp.came,
        }
        for kind, desk in desks.items():
            desk.came = _both(came[kind], kick)
        logins.add_job_queues(desks)
        self.runs: list[Callable[[], Awaitable[None]]] = [
            hashes.run,
            keys.run,
            self._callouts.asking.run,
            self._ocsp.run,
        ]
        urls = ServerUrls(
            listeners,
            {
                "token_jwks_url": keys.replace_url,
                "http_url": self._callouts.asking.replace_url,
                "ocsp_url": self._ocsp.replace_url,
            },
        )
        self.reloads: list[Any] = [urls, self._callouts]

    def register(self, metrics: Metrics) -> None:
        """Add the metrics of responses."""
        answers = self._chains.answers
        for name, asking in (("http", self._callouts.asking), ("ocsp", self._ocsp)):
            metrics.counter(
                f"{name}_logins_total",
                f"Results of the login step {name}, by listener and outcome.",
                partial(_counted, asking.outcomes),
                ("listener", "outcome"),
            )
            metrics.gauge(
                f"{name}_breaker_open",
                "1 while the circuit breaker of a listener's server is open.",
                asking.open_breakers,
                ("listener",),
            )
        metrics.gauge("http_answers_kept", "Cached responses of HTTP servers.", lambda: float(len(answers)))
        metrics.counter(
            "http_answers_dropped_total",
            "Responses evicted before their expiry because the cache was full.",
            lambda: float(answers.dropped),
        )
        metrics.counter(
            "ocsp_unanswered_total",
            "Certificates without a usable OCSP response, by listener: accepted (soft) or refused (require).",
            partial(_counted, self._chains.unanswered),
            ("listener",),
        )


def _counted(counts: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], float]:
    return {key: float(count) for key, count in counts.items()}


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call
