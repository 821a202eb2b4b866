"""The metrics page: plain numbers in, Prometheus text out, over HTTP."""

import math
import socket
import subprocess
import sys
import time
from collections.abc import Generator

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from conf.errors import UserError
from conf.metrics import Metrics, PowersOfTwo, bind_health, bind_metrics, page_hosts, serve_metrics
from conf.node_pages import NodePages
from conf.node_settings import MetricsSettings
from tests.patience import PATIENCE_S


def example() -> Metrics:
    metrics = Metrics("edge", "edge-0", "0.1.0")
    metrics.counter("messages_dropped_total", "Dropped.", lambda: {("queue_full",): 3}, ("reason",))
    metrics.gauge("connections", "Clients.", lambda: 7)
    latency = metrics.histogram("publish_ack_seconds", "PUBLISH to PUBACK.", (0.1, 1.0))
    for value in (0.1, 0.5, 5.0):
        latency.observe(value)
    return metrics


def test_page_shows_plain_numbers() -> None:
    """Counters, gauges and histograms with our prefix."""
    page = example().render().decode()
    for line in (
        'stratamq_build_info{node="edge-0",tier="edge",version="0.1.0"} 1.0',
        'stratamq_messages_dropped_total{reason="queue_full"} 3.0',
        "stratamq_connections 7.0",
        'stratamq_publish_ack_seconds_bucket{le="0.1"} 1.0',
        'stratamq_publish_ack_seconds_bucket{le="+Inf"} 3.0',
        "stratamq_publish_ack_seconds_sum 5.6",
    ):
        assert line in page.splitlines(), page


def test_page_is_parsed_by_prometheus() -> None:
    """Prometheus' own parser finds each label with any content, each number, and complete histograms."""
    metrics = Metrics("edge", 'e"\\\n', "1")
    wild = ("a\\b", 'quote " and\nline', "ä\u4e2d")
    values: dict[tuple[str, ...], float] = {(one,): float(number) for number, one in enumerate(wild)}
    metrics.gauge("wild", "Back\\slash,\nline.", lambda: values, ("name",))
    metrics.gauge("pairs", "Two labels.", lambda: {("x", "y"): 1e300, ("", "z"): 0.1 + 0.2}, ("b", "a"))
    odd: dict[tuple[str, ...], float] = {("inf",): math.inf, ("-inf",): -math.inf, ("nan",): math.nan, ("big",): 2**63}
    metrics.gauge("odd", "No ordinary numbers.", lambda: odd, ("what",))
    metrics.counter("nothing_total", "No series.", dict)
    lengths = metrics.histogram("lengths_seconds", "Seconds.", (0.5, 1.0))
    for value in (0.1, 0.7, 7.0):
        lengths.observe(value)
    for _ in range(2):  # the second page is made of cached texts
        found = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
        assert {sample.labels["name"]: sample.value for sample in found["stratamq_wild"].samples} == dict(
            zip(wild, (0.0, 1.0, 2.0), strict=True)
        )
        assert found["stratamq_wild"].documentation == "Back\\slash,\nline."
        pairs = {(one.labels["b"], one.labels["a"]): one.value for one in found["stratamq_pairs"].samples}
        assert pairs == {("x", "y"): 1e300, ("", "z"): 0.1 + 0.2}
        numbers = {one.labels["what"]: one.value for one in found["stratamq_odd"].samples}
        assert math.isnan(numbers.pop("nan")) and numbers == {"inf": math.inf, "-inf": -math.inf, "big": 2.0**63}
        assert found["stratamq_nothing"].samples == [] and found["stratamq_nothing"].type == "counter"
        samples = [
            (one.name.rpartition("_")[2], one.labels, one.value) for one in found["stratamq_lengths_seconds"].samples
        ]
        assert samples == [
            ("bucket", {"le": "0.5"}, 1.0),
            ("bucket", {"le": "1.0"}, 2.0),
            ("bucket", {"le": "+Inf"}, 3.0),
            ("count", {}, 3.0),
            ("sum", {}, 7.8),
        ]
        assert found["stratamq_build_info"].samples[0].labels["node"] == 'e"\\\n'


async def test_page_yields_to_other_tasks_between_families() -> None:
    """A scrape of a large node does not block the loop for long; the page is the same."""
    metrics = Metrics("edge", "e", "1")
    iterations = 0
    counts: list[int] = []

    def slow() -> float:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.001:
            pass
        counts.append(iterations)
        return 1.0

    for number in range(5):
        metrics.gauge(f"slow_{number}", "Takes a millisecond.", slow)

    async def others() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        page = await metrics.page()
        nursery.cancel_scope.cancel()
    assert page == metrics.render() and len(set(counts[:5])) >= 3, "others had a turn among any three"


def test_families_share_a_reading_for_the_length_of_a_page() -> None:
    """The loop's counters were read for each family that shows a part of them."""
    now, read = 0.0, 0
    metrics = Metrics("edge", "e", "1", clock=lambda: now)

    def values() -> dict[str, float]:
        nonlocal read
        read += 1
        return {"a": read, "b": read}

    def steps() -> Generator[None, None, int]:
        yield
        return values()["a"]  # type: ignore[return-value]

    shared, walked = metrics.shared(values), metrics.walked(steps)
    metrics.gauge("a", "A.", lambda: shared()["a"])
    metrics.gauge("b", "B.", lambda: shared()["b"])
    metrics.gauge("c", "C.", lambda: float(walked()))
    assert read == 0
    for page in (1, 2):
        lines = metrics.render().decode().splitlines()
        assert [f"stratamq_{name} {2 * page - (name != 'c')}.0" in lines for name in "abc"] == [True] * 3
    assert metrics.values_of("a") == metrics.values_of("b") == [5.0], "a look reads families one by one"
    now = 1.0
    assert metrics.values("gauge")["stratamq_a"] == 6.0


def test_page_text_is_cached_while_unchanged() -> None:
    """A number that changes in place, and one that is not finite, are rendered again."""
    metrics = Metrics("edge", "e", "1")
    counts: dict[tuple[str, ...], float] = {("a",): 1.0, ("b",): math.nan}
    metrics.counter("events_total", "Events.", lambda: counts, ("event",))
    lengths = metrics.histogram("lengths_seconds", "Seconds.", (0.5,))
    first = metrics.render()
    assert metrics.render() == first
    counts["a",] = 2.0
    counts["c",] = 1.0
    lengths.observe(0.1)
    lines = metrics.render().decode().splitlines()
    for line in ('events_total{event="a"} 2.0', 'events_total{event="b"} NaN', 'events_total{event="c"} 1.0'):
        assert f"stratamq_{line}" in lines
    assert 'stratamq_lengths_seconds_bucket{le="0.5"} 1.0' in lines
    del counts["a",]
    assert b'event="a"' not in metrics.render()


async def test_pages_unknown_path_is_refused() -> None:
    """Other paths, other methods, and WebSockets."""
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    pages = NodePages(example(), health_only=False)
    for kind, method, path, status in (
        ("http", "GET", "/", 404),
        ("http", "GET", "/metrics/", 404),
        ("http", "POST", "/metrics", 405),
        ("http", "HEAD", "/metrics", 200),
        ("http", "GET", "/readyz", 503),
    ):
        sent.clear()
        await pages.answer({"type": kind, "method": method, "path": path, "query_string": b"\xff=&&"}, None, send)
        assert sent[0]["status"] == status and (method != "HEAD" or not sent[1]["body"])
    sent.clear()
    await pages.answer({"type": "websocket", "path": "/metrics"}, None, send)
    assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/"])
async def test_pages_are_served_for_own_host_names_only(path: str) -> None:
    """DNS rebinding; scrapers by address or by a listed name are served, and so are health checks."""
    metrics = example()
    named = MetricsSettings(hosts=("scraped.example",))
    hosts = page_hosts(named, "edge-0.example:7949")
    listener, health = bind_metrics(named), bind_metrics(named)
    address, of_health = listener.getsockname(), health.getsockname()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_metrics, metrics, listener, False, hosts)
        nursery.start_soon(serve_metrics, metrics, health, True, None)
        with trio.fail_after(PATIENCE_S):
            own = socket.gethostname()
            for host in ("127.0.0.1:1", "localhost", "[::1]:9", "scraped.example:80", "EDGE-0.example", own):
                assert " 421 " not in (await get(address, path, host)).splitlines()[0], host
            for host in ("evil.example", "192.0.2.1:9749", "localhost.evil.example"):
                answer = await get(address, path, host)
                assert " 421 " in answer.splitlines()[0] and "metrics.hosts" in answer and "stratamq_" not in answer
            assert " 421 " not in await get(of_health, path, "evil.example")
        nursery.cancel_scope.cancel()
    assert metrics.values_of("pages_misdirected_total") == [3.0]


def test_names_are_checked() -> None:
    """A counter has the suffix; a name is used once."""
    metrics = example()
    with pytest.raises(ValueError, match="_total"):
        metrics.counter("drops", "", lambda: 0)
    with pytest.raises(ValueError, match="twice"):
        metrics.gauge("connections", "", lambda: 0)


async def get(address: tuple[str, int], path: str, host: str = "x") -> str:
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return b"".join([bytes(chunk) async for chunk in stream]).decode()


async def test_page_is_served_and_readiness_follows_its_checks() -> None:
    """/metrics, /livez, /startupz, /readyz; a request that arrives before the server waits for it."""
    metrics = example()
    ready = False
    metrics.check("lease", lambda: ready)
    listener = bind_metrics(MetricsSettings())
    address = listener.getsockname()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_metrics, metrics, listener)
        with trio.fail_after(PATIENCE_S):
            assert "stratamq_connections 7.0" in await get(address, "/metrics")
            assert "200" in (await get(address, "/livez")).splitlines()[0]
            answer = await get(address, "/readyz?verbose")
            assert "503" in answer.splitlines()[0] and "lease: no" in answer
            answer = await get(address, "/startupz")
            assert "503" in answer.splitlines()[0] and "not started: " in answer
            ready = True
            assert "200" in (await get(address, "/readyz")).splitlines()[0]
            ready = False
            assert "503" in (await get(address, "/readyz")).splitlines()[0]
            assert "200" in (await get(address, "/startupz")).splitlines()[0]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"404"),
        (
            b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
            b"200",
        ),
        (
            b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            b"200",
        ),
    ],
)
async def test_the_protocol_is_never_changed(request_bytes: bytes, status: bytes) -> None:
    """HTTP/2 and WebSockets have separate bounds; a request for them is ignored."""
    listener = bind_metrics(MetricsSettings())
    address = listener.getsockname()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_metrics, example(), listener)
        with trio.fail_after(PATIENCE_S):
            stream = await trio.open_tcp_stream(*address)
            async with stream:
                await stream.send_all(request_bytes)
                answer = bytes(await stream.receive_some(4096))
        nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 " + status), answer


def test_check_on_other_nodes_fails_after_steady_failure() -> None:
    """One success meets it; a node that was never ready, and a condition of the node itself, get no patience."""
    now, met = 0.0, False
    metrics = Metrics("edge", "e0", "1", clock=lambda: now)
    metrics.check("storage", lambda: met, depends=True)
    metrics.check("drain", lambda: met)
    assert metrics.readiness() == {"storage": False, "drain": False}
    met = True
    assert metrics.readiness() == {"storage": True, "drain": True}
    met, now = False, 10.0
    assert metrics.readiness() == {"storage": True, "drain": False}
    now = 11.9
    assert metrics.readiness()["storage"]
    now = 12.0
    assert not metrics.readiness()["storage"]
    met = True
    assert metrics.readiness()["storage"]
    met, now = False, 13.0
    assert metrics.readiness()["storage"], "the success began the time anew"


async def test_health_bind_serves_no_metrics() -> None:
    """metrics.health_bind serves /livez and /readyz, and no metrics of the node."""
    metrics = example()
    metrics.check("lease", lambda: False)
    listener = bind_health(MetricsSettings(health_bind="127.0.0.1:0"))
    assert listener is not None
    address = listener.getsockname()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_metrics, metrics, listener, True)
        with trio.fail_after(PATIENCE_S):
            assert "200" in (await get(address, "/livez")).splitlines()[0]
            assert "503" in (await get(address, "/readyz")).splitlines()[0]
            assert "404" in (await get(address, "/metrics")).splitlines()[0]
        nursery.cancel_scope.cancel()


def test_health_bind_is_optional() -> None:
    """Without health_bind there is no second page; an invalid host:port is refused when it is read."""
    assert bind_health(MetricsSettings()) is None
    with pytest.raises(ValidationError):
        MetricsSettings(health_bind="8080")
    with pytest.raises(UserError, match=r"cannot listen for metrics.health_bind on 127.0.0.1:65536"):
        bind_health(MetricsSettings(health_bind="127.0.0.1:65536"))


def test_page_without_scrape_imports_no_web_server() -> None:
    """It would take processor time from the first clients of a node that has just become ready."""
    code = (
        "import sys, trio; from conf.metrics import *; from conf.node_settings import MetricsSettings\n"
        "async def main():\n"
        "    listener = bind_metrics(MetricsSettings())\n"
        "    with trio.move_on_after(0.2):\n"
        "        await serve_metrics(Metrics('edge', 'e', '1'), listener)\n"
        "trio.run(main)\n"
        "assert not {'starlette', 'anycorn', 'prometheus_client'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_scrape_of_a_prepared_node_imports_nothing() -> None:
    """The first scrape of any node blocked its loop for half a second: imports in a thread share the interpreter."""
    code = (
        "import sys, trio; from conf.metrics import *; from conf.node_settings import MetricsSettings\n"
        "async def main():\n"
        "    listener = bind_metrics(MetricsSettings())\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(serve_metrics, Metrics('edge', 'e', '1'), listener)\n"
        "        stream = await trio.open_tcp_stream(*listener.getsockname()[:2])\n"
        "        await stream.send_all(b'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "        answer = b''.join([part async for part in stream])\n"
        "        assert b'stratamq_build_info' in answer\n"
        "        nursery.cancel_scope.cancel()\n"
        "prepare_page(MetricsSettings())\n"
        "before = set(sys.modules)\n"
        "trio.run(main)\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_first_scrape_imports_unprepared_page() -> None:
    code = (
        "import sys; from conf.metrics import *; from conf.node_settings import MetricsSettings\n"
        "prepare_page(MetricsSettings(prepare=False)); prepare_page(MetricsSettings(enabled=False))\n"
        "assert not {'starlette', 'anycorn', 'prometheus_client'} & set(sys.modules)\n"
        "prepare_page(MetricsSettings(enabled=False, health_bind='127.0.0.1:0'))\n"
        "assert {'anycorn'} <= set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_port_in_use_is_one_clear_line() -> None:
    """An operator's error is one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen for metrics on 127.0.0.1:{port}: Address already in use"):
            bind_metrics(MetricsSettings(port=port))


def test_import_does_not_pull_in_the_web_server() -> None:
    """Start to ready must not include the page."""
    slow = ("starlette", "anycorn", "prometheus_client")
    code = f"import conf.metrics, sys; print([name for name in {slow} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_durations_are_counted_by_powers_of_two() -> None:
    """Each bound includes its own value, as in Prometheus, and no value is lost at either end."""
    lengths = PowersOfTwo()
    for value in (0.0, 1e-6, 64e-6, 65e-6, 128e-6, 129e-6, 1.0, 1e9):
        lengths.observe(value)
    assert lengths.counts[:3] == [3, 2, 1] and lengths.counts[-1] == 1 and sum(lengths.counts) == 8
    at = next(number for number, bound in enumerate(lengths.bounds) if bound >= 1.0)
    assert lengths.counts[at] == 1 and len(lengths.counts) == len(lengths.bounds) + 1
