"""Spans to an OpenTelemetry collector: OTLP over HTTP, from a bounded queue; a collector that is down holds nothing up.

Encoding is opentelemetry-proto's and HTTP httpx's (extra ``otel``), imported only where an endpoint is set.
"""

import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import trio

from admin.spans import Span
from conf.errors import UserError
from conf.events import say
from conf.metrics import Metrics
from conf.url_settings import HttpUrl
from conf.urls import mask_urls
from wire.node.reload_parts import changed_files, secret_marks

__all__ = ["CollectorUrl", "SpanSender", "encode", "open_sender", "register_sender"]

logger = logging.getLogger(__name__)

QUEUED_MAX = 8_192  # spans
BATCH_MAX = 512
ANSWER_S = 5.0
AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)
AGAIN_STATUS = (429, 502, 503, 504)  # of OTLP's specification: others are not worth a second try
SERVER_KIND = 2


def encode(spans: Sequence[Span], cluster: str, version: str) -> bytes:
    """Return spans as an ExportTraceServiceRequest."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    of_all = request.resource_spans.add()
    _set(of_all.resource.attributes, {"service.name": "stratamq", "service.namespace": cluster})
    scope = of_all.scope_spans.add()
    scope.scope.name, scope.scope.version = "stratamq.admin", version
    for span in spans:
        made = scope.spans.add(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            name=span.name,
            kind=SERVER_KIND,
            start_time_unix_nano=span.start_us * 1_000,
            end_time_unix_nano=span.end_us * 1_000,
        )
        _set(made.attributes, span.attributes)
        for told in span.events:
            event = made.events.add(time_unix_nano=told.at_us * 1_000, name=told.event.stage or "")
            about = {"stratamq.node": told.node, "stratamq.error_us": told.error_us}
            for name in ("client_id", "partition", "seq", "reason", "detail"):
                value = getattr(told.event, name)
                if value is not None:
                    about[f"stratamq.{name}"] = value
            _set(event.attributes, about)
        if span.failed:
            made.status.code, made.status.message = made.status.STATUS_CODE_ERROR, span.failed
    return bytes(request.SerializeToString())


def _set(attributes: Any, values: Any) -> None:
    for name, value in values.items():
        attribute = attributes.add(key=name)
        if isinstance(value, int) and abs(value) < 2**63:  # a node may tell any number: what fits no field is text
            attribute.value.int_value = value
        else:
            attribute.value.string_value = str(value)


class SpanSender:
    """Spans that wait for the collector, and counts of what became of the others.

    Args:
        client: httpx's.
        endpoint: With its path, as ``http://collector:4318/v1/traces``.
        cluster: Its name, told with every span.
        version: Of this program.

    Attributes:
        endpoint: Of the next request.
        sent: Spans that the collector took.
        dropped: What it never got, by reason.
        failures: Requests without a usable answer.
    """

    def __init__(self, client: Any, endpoint: HttpUrl, cluster: str, version: str) -> None:
        self._client = client
        self.endpoint = endpoint
        self._about = cluster, version
        self._queue: deque[Span] = deque()
        self._wanted = trio.Event()
        self._is_down = False
        self.sent = 0
        self.failures = 0
        self.dropped: Counter[str] = Counter()

    def drop(self, reason: str, count: int) -> None:
        """Count what is told nobody."""
        self.dropped[reason] += count

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans; where there is no room the oldest go."""
        self._queue.extend(spans)
        while len(self._queue) > QUEUED_MAX:
            self._queue.popleft()
            self.drop("queue_full", 1)
        if spans:
            self._wanted.set()

    @property
    def queued(self) -> int:
        """Spans that wait."""
        return len(self._queue)

    async def run(self) -> None:
        """Send, for ever."""
        while True:
            if not self._queue:
                self._wanted = trio.Event()
                await self._wanted.wait()
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            body = encode(batch, *self._about)
            for wait_s in (*AGAIN_S, None):
                why, is_final = await self._post(body)
                if not why:
                    self.sent += len(batch)
                    break
                self.failures += 1
                if is_final or wait_s is None:
                    self.drop("refused" if is_final else "unreachable", len(batch))
                    break
                await trio.sleep(wait_s)

    async def _post(self, body: bytes) -> tuple[str, bool]:
        """Return why the collector did not take them, "" if it did, and whether a second try is of no use."""
        import httpx

        why, is_final = "", False
        try:
            with trio.fail_after(ANSWER_S):
                headers = {"Content-Type": "application/x-protobuf"}
                answer = await self._client.post(self.endpoint.plain, content=body, headers=headers)
            if answer.status_code // 100 != 2:
                why, is_final = f"it answered {answer.status_code}", answer.status_code not in AGAIN_STATUS
        except trio.TooSlowError:
            why = f"no answer within {ANSWER_S:g} s"
        except (httpx.HTTPError, OSError) as error:
            why = mask_urls(str(error)) or type(error).__name__
        if why and not self._is_down:
            say(logger, "admin.collector_down", endpoint=self.endpoint, why=why)
        elif not why and self._is_down:
            say(logger, "admin.collector_up", endpoint=self.endpoint)
        self._is_down = bool(why)
        return why, is_final


def register_sender(metrics: Metrics, sender: SpanSender) -> None:
    """Show what became of the spans."""
    metrics.counter("otlp_spans_total", "Spans that the collector took.", lambda: float(sender.sent))
    metrics.counter("otlp_failures_total", "Requests that the collector did not take.", lambda: float(sender.failures))
    metrics.gauge("otlp_queued", "Spans that wait for the collector.", lambda: float(sender.queued))
    metrics.counter(
        "otlp_dropped_total",
        "What the collector never got, by reason.",
        lambda: {(reason,): float(count) for reason, count in sender.dropped.items()},
        ("reason",),
    )


def open_sender(endpoint: HttpUrl, cluster: str, version: str) -> SpanSender:
    """Return a sender.

    Raises:
        UserError: The libraries are not installed.
    """
    try:
        import httpx
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: F401
    except ImportError as error:
        raise UserError(f"admin.otlp_endpoint: {error}; pip install 'stratamq[otel]'") from None
    limits = httpx.Limits(max_connections=1)
    client = httpx.AsyncClient(timeout=ANSWER_S, limits=limits, follow_redirects=False, trust_env=False)
    return SpanSender(client, _read(endpoint)[0], cluster, version)


class CollectorUrl:
    """Part of a reload: the URL of the collector, where ``admin.otlp_endpoint`` names a file that holds it.

    Args:
        endpoint: The setting.
        sender: Sends to that URL.
    """

    settings: Sequence[str] = ()  # another URL or file in the setting is read at the start alone

    def __init__(self, endpoint: HttpUrl, sender: "SpanSender") -> None:
        self._sender = sender
        self._held = _read(endpoint)

    def load(self, config: Any) -> tuple[HttpUrl, dict[str, str]]:
        """Read the file again.

        Raises:
            UserError: It is unusable.
        """
        return _read(config.admin.otlp_endpoint)

    def current(self) -> tuple[HttpUrl, dict[str, str]]:
        """Return the URL in force."""
        return self._held

    def difference(self, loaded: tuple[HttpUrl, dict[str, str]]) -> list[str]:
        """Return the file if its content is another."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: tuple[HttpUrl, dict[str, str]]) -> None:
        """Send there from now on."""
        self._held = loaded
        self._sender.endpoint = loaded[0]


def _read(endpoint: HttpUrl) -> tuple[HttpUrl, dict[str, str]]:
    marks = secret_marks([endpoint.file] if endpoint.file is not None else [])
    return _with_path(endpoint.read("admin.otlp_endpoint")), marks


def _with_path(endpoint: HttpUrl) -> HttpUrl:
    """Return the URL with the path of OTLP where it has none; its query stays."""
    parts = urlsplit(endpoint.plain)
    if parts.path.strip("/"):
        return endpoint
    return endpoint.replaced(urlunsplit(parts._replace(path="/v1/traces")))
