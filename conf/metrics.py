"""Metrics of a node, and the pages ``/metrics``, ``/livez``, ``/startupz``, ``/readyz``.

The hot path counts in plain integers and its own histograms; this module reads them on a scrape. The page runs on
anycorn, whose import takes longer than the start of a node. So the socket is bound at once, and the rest is imported
before the node is ready (``prepare_page``), or in a thread at the first scrape, which waits in the backlog. After the
start the first clients need the processor, and a node that is never scraped needs no import. Names: base units,
``_total`` on counters, no client or topic in labels.
"""

import contextlib
import importlib
import math
import socket
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import trio

from conf.addresses import host_of
from conf.admission import POOLS, AdmissionPool
from conf.errors import UserError
from conf.http1 import plain_server
from conf.metrics_text import FamilyText
from conf.node_pages import NodePages
from conf.node_settings import MetricsSettings
from conf.served_hosts import ServedHosts

__all__ = [
    "Histogram",
    "Metrics",
    "PowersOfTwo",
    "bind_health",
    "bind_metrics",
    "page_hosts",
    "prepare_page",
    "serve_metrics",
]

NAME_PREFIX = "stratamq_"
PAGE_SERVER = "conf.page_server"
PAGE_MODULES = (PAGE_SERVER, "anyio._backends._trio", "encodings.idna")
STEADY_S = 2.0  # a lost lease or link is restored within this time at a failover
SLICE_S = 0.0005  # of a page, before other tasks run
SAME_READING_S = 0.05
LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Reading = float | Mapping[tuple[str, ...], float]
T = TypeVar("T")


class Histogram:
    """Counts per bucket as plain integers."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a value equal to a bound belongs below it, as in Prometheus."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def above(self, bound: float) -> int:
        """Return how many counted values exceed one of the bounds."""
        return sum(self.counts[bisect_left(self.bounds, bound) + 1 :])

    def bound_of(self, share: float) -> float:
        """Return the smallest bound with at least that share of the values below it; the largest if none has."""
        wanted, below = share * sum(self.counts), 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            if below >= wanted:
                return bound
        return self.bounds[-1]


class PowersOfTwo(Histogram):
    """Durations in buckets by powers of two from 64 us to 17 min: without a search, for the hot path."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(64e-6 * 2**number for number in range(24))

    def observe(self, value: float) -> None:
        """Count one duration in s, rounded to a microsecond."""
        number = ((int(value * 1e6) - 1) >> 6).bit_length() if value > 0 else 0
        self.counts[min(number, 24)] += 1
        self.total += value


class _Check:
    """A condition of ``/readyz``: one success meets it; it fails after failing for ``patience_s``.

    Otherwise a proxy would remove all nodes because one lease was late, and turn a pause into an outage.
    """

    __slots__ = ("_is_met", "_missed_at", "_patience_s", "_was_met")

    def __init__(self, is_met: Callable[[], bool], patience_s: float) -> None:
        self._is_met = is_met
        self._patience_s = patience_s
        self._missed_at: float | None = None  # first failure since the last success
        self._was_met = False

    def evaluate(self, now: float) -> bool:
        if self._is_met():
            self._missed_at, self._was_met = None, True
            return True
        if not self._was_met:
            return False  # a starting node gets no patience
        if self._missed_at is None:
            self._missed_at = now
        return now - self._missed_at < self._patience_s


class _Shared(Generic[T]):
    """A value shared by several families of one reading.

    Args:
        metrics: Owner of the readings.
        walk: Computes it, in steps.
    """

    def __init__(self, metrics: "Metrics", walk: Callable[[], Generator[None, None, T]]) -> None:
        self._metrics = metrics
        self._walk = walk
        self._kept: dict[int, T] = {}  # of the newest reading

    def __call__(self) -> T:
        """Return the value."""
        if self._metrics.reading not in self._kept:
            for _ in self.steps():
                pass
        return self._kept[self._metrics.reading]

    def steps(self) -> Iterator[None]:
        """Compute the value again."""
        found = yield from self._walk()
        self._kept = {self._metrics.reading: found}


class Metrics:
    """Metrics of one process. Readers run in the page's task, synchronously; they must be fast.

    Args:
        tier: Of the node.
        node: Its name.
        version: Of the program.
        clock: Seconds; for conditions that tolerate a failure for a while.
    """

    def __init__(self, tier: str, node: str, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._families: dict[str, tuple[str, str, Callable[[], Any], tuple[str, ...]]] = {}
        self._texts: list[FamilyText] = []  # one per family
        self._walks: list[_Shared[Any]] = []  # run before a page
        self.reading = 0  # of the page, or of some of its families
        self._read_at = -math.inf
        self._pools: dict[str, Callable[[], Mapping[str, int]]] = {}
        self.pages_misdirected = 0
        self.page_counts: Counter[str] = Counter()  # closed connections to pages of this node, by reason
        self._checks: dict[str, _Check] = {}
        self._started = False
        self.waits_for: Callable[[], str] = lambda: "the node starts"
        build: Reading = {(version, tier, node): 1.0}
        self.pool("node_pages", lambda: self.page_counts)
        misdirected = "Requests to pages of the node for a host that is not one of its names (421)."
        self.counter("pages_misdirected_total", misdirected, lambda: float(self.pages_misdirected))
        self.gauge("build_info", "Version of this node.", lambda: build, ("version", "tier", "node"))

    def counter(self, name: str, text: str, read: Callable[[], Reading], labels: tuple[str, ...] = ()) -> None:
        """Register a counter; ``name`` without prefix, ending in ``_total``."""
        if not name.endswith("_total"):
            raise ValueError(f"counter {name} must end in _total")
        self._add("counter", name, text, read, labels)

    def gauge(self, name: str, text: str, read: Callable[[], Reading], labels: tuple[str, ...] = ()) -> None:
        """Register a gauge."""
        self._add("gauge", name, text, read, labels)

    def histogram(self, name: str, text: str, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> Histogram:
        """Register and return a new histogram."""
        histogram = Histogram(bounds)
        self.show(name, text, lambda: histogram)
        return histogram

    def show(self, name: str, text: str, read: Callable[[], Histogram]) -> None:
        """Register an existing histogram of the hot path."""
        self._add("histogram", name, text, read, ())

    def shared(self, read: Callable[[], T]) -> Callable[[], T]:
        """Return a reader for several families: within one page all of them get the result of the first ``read``."""

        def at_once() -> Generator[None, None, T]:
            yield from ()
            return read()

        return _Shared(self, at_once)

    def walked(self, walk: Callable[[], Generator[None, None, T]]) -> Callable[[], T]:
        """Return a reader for several families of one walk's result; a page runs the walk's steps in slices."""
        made = _Shared(self, walk)
        self._walks.append(made)
        return made

    def pool(self, name: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """Register counters of refused and displaced unauthenticated connections of a pool of ``conf/admission.py``."""
        if not self._pools:
            self.counter(
                "admission_ended_total",
                "Unauthenticated connections that were refused a slot or displaced, by pool and reason.",
                self._ended,
                ("pool", "reason"),
            )
        self._pools[name] = counts

    def _ended(self) -> Reading:
        return {
            (pool, reason): float(count) for pool, counts in self._pools.items() for reason, count in counts().items()
        }

    def check(self, name: str, ready: Callable[[], bool], *, depends: bool = False) -> None:
        """Add a condition of ``/readyz``; one that depends on other nodes fails after failing for STEADY_S."""
        self._checks[name] = _Check(ready, STEADY_S if depends else 0.0)

    def explain(self, waits_for: Callable[[], str]) -> None:
        """Set the function that returns why the node is not ready, in one line; "" if it is."""
        self.waits_for = waits_for

    def readiness(self) -> dict[str, bool]:
        """Return every condition of ``/readyz``."""
        now = self._clock()
        checks = {name: check.evaluate(now) for name, check in self._checks.items()}
        self._started = self._started or (bool(checks) and all(checks.values()))
        return checks

    def has_started(self) -> bool:
        """Return whether all conditions were met once, regardless of later failures."""
        if not self._started:
            self.readiness()
        return self._started

    def read(self) -> dict[str, Any]:
        """Return all values by name, without prefix; for ``$SYS``, status verbs and tests."""
        self.reading += 1
        return {name: read() for name, (_kind, _text, read, _labels) in self._families.items()}

    def values_of(self, name: str) -> list[float]:
        """Return the values of one family, a number for each of its series; empty if the family does not exist."""
        if name not in self._families:
            return []
        self._read_soon()
        value = self._families[name][2]()
        return [float(number) for number in (value.values() if isinstance(value, Mapping) else (value,))]

    def values(self, kind: str) -> dict[str, float]:
        """Return the values of all families of a kind by name and labels, as on the page."""
        found: dict[str, float] = {}
        self._read_soon()
        for name, (of, _text, read, labels) in self._families.items():
            if of != kind:
                continue
            value = read()
            for key, number in value.items() if isinstance(value, Mapping) else (((), value),):
                told = ",".join(f'{label}="{one}"' for label, one in zip(labels, key, strict=False))
                found[f"{NAME_PREFIX}{name}{{{told}}}" if told else NAME_PREFIX + name] = float(number)
        return found

    def slowest(self) -> dict[str, float]:
        """Return the 99 % quantile bound of each non-empty histogram, by name."""
        found: dict[str, float] = {}
        for name, (of, _text, read, _labels) in self._families.items():
            histogram = read() if of == "histogram" else None
            if histogram is not None and any(histogram.counts):
                found[f'{NAME_PREFIX}{name}{{quantile="0.99"}}'] = histogram.bound_of(0.99)
        return found

    def _add(self, kind: str, name: str, text: str, read: Callable[[], Any], labels: tuple[str, ...]) -> None:
        if name in self._families:
            raise ValueError(f"metric {name} is registered twice")
        self._families[name] = (kind, text, read, labels)
        self._texts.append(FamilyText(NAME_PREFIX + name, kind, text, labels, read))

    def render(self) -> bytes:
        """Return the page in Prometheus' text format."""
        self.reading += 1
        return b"".join([text.lines() for text in self._texts])

    async def page(self) -> bytes:
        """Return the same page, rendered in slices: other tasks run in between."""
        parts: list[bytes] = []
        self.reading += 1
        began = time.perf_counter()
        for _ in self._steps(parts):
            if time.perf_counter() - began >= SLICE_S:
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()
        return b"".join(parts)

    def _steps(self, parts: list[bytes]) -> Iterator[None]:
        for walk in self._walks:
            yield from walk.steps()
        for text in self._texts:
            parts.append(text.lines())
            yield

    def _read_soon(self) -> None:
        """Start another reading, unless the last one has just started: a query of a node reads several families."""
        now = self._clock()
        if now - self._read_at >= SAME_READING_S:
            self.reading, self._read_at = self.reading + 1, now


def page_hosts(settings: MetricsSettings, advertise: str = "") -> ServedHosts:
    """Return the host names of a node's page.

    Args:
        advertise: host:port for other nodes, "" for none.
    """
    return ServedHosts([settings.bind, host_of(advertise), socket.gethostname(), *settings.hosts])


def bind_metrics(settings: MetricsSettings) -> socket.socket:
    """Bind the page's socket; fast, so that the address is known when the node is ready.

    Raises:
        UserError: The address cannot be bound.
    """
    return _bind(settings.bind, settings.port, "metrics")


def bind_health(settings: MetricsSettings) -> socket.socket | None:
    """Bind the socket of /livez, /startupz and /readyz only; None if no address is configured.

    Raises:
        UserError: The address cannot be bound.
    """
    if not settings.health_bind:
        return None
    host, _, port = settings.health_bind.rpartition(":")
    return _bind(host.strip("[]"), int(port), "metrics.health_bind")


def _bind(host: str, port: int, what: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen for {what} on {host}:{port}: {why}") from None
    listener.setblocking(False)
    return listener


async def serve_metrics(
    metrics: Metrics, listener: socket.socket, health_only: bool = False, hosts: ServedHosts | None = None
) -> None:
    """Serve the page until cancelled, also before the node is ready: the page has the reason.

    With ``health_only`` no metrics are served, because the address is reachable for many, by any name. ``hosts`` are
    the names of the node; None: any.
    """
    with contextlib.closing(listener):
        await trio.lowlevel.wait_readable(listener)  # forever, if there is no scrape
        await trio.to_thread.run_sync(_import)
        pages = NodePages(metrics, health_only=health_only, hosts=hosts)
        pool: AdmissionPool[trio.CancelScope] = AdmissionPool(POOLS["node_pages"], lambda *_: False)
        pool.counts = metrics.page_counts  # of both pages
        await importlib.import_module(PAGE_SERVER).serve_pages(pages.answer, listener, pool)


def prepare_page(settings: MetricsSettings) -> None:
    """Import the page's modules, if the settings say so: a thread that does it later competes for the processor."""
    if settings.prepare and (settings.enabled or settings.health_bind):
        _import()


def _import() -> None:
    plain_server()
    for name in PAGE_MODULES:
        importlib.import_module(name)
