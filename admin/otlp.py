"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, from a bounded queue that never blocks the caller.

opentelemetry-proto encodes and httpx sends (extra ``otel``); both are imported only if an endpoint is set.
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
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
RETRY_STATUS = (429, 502, 503, 504)  # OTLP specification: retry these statuses only
SERVER_KIND = 2


def encode(spans: Sequence[Span], cluster: str, version: str) -> bytes:
    """Return spans as an ExportTraceServiceRequest."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    _set(resource_spans.resource.attributes, {"service.name": "stratamq", "service.namespace": cluster})
    scope = resource_spans.scope_spans.add()
    scope.scope.name, scope.scope.version = "stratamq.admin", version
    for span in spans:
        otlp_span = scope.spans.add(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            name=span.name,
            kind=SERVER_KIND,
            start_time_unix_nano=span.start_us * 1_000,
            end_time_unix_nano=span.end_us * 1_000,
        )
        _set(otlp_span.attributes, span.attributes)
        for item in span.events:
            event = otlp_span.events.add(time_unix_nano=item.at_us * 1_000, name=item.event.stage or "")
            about = {"stratamq.node": item.node, "stratamq.error_us": item.error_us}
            for name in ("client_id", "partition", "seq", "reason", "detail"):
                value = getattr(item.event, name)
                if value is not None:
                    about[f"stratamq.{name}"] = value
            _set(event.attributes, about)
        if span.failed:
            otlp_span.status.code, otlp_span.status.message = otlp_span.status.STATUS_CODE_ERROR, span.failed
    return bytes(request.SerializeToString())


def _set(attributes: Any, values: Any) -> None:
    for name, value in values.items():
        attribute = attributes.add(key=name)
        # a node may send any number: one that does not fit becomes text
        if isinstance(value, int) and abs(value) < 2**63:
            attribute.value.int_value = value
        else:
            attribute.value.string_value = str(value)


class SpanSender:
    """Queue of spans for the collector, with counts of sent and dropped ones.

    Args:
        client: httpx client.
        endpoint: With its path, as ``http://collector:4318/v1/traces``.
        cluster: Name, sent with every span.
        version: Of this program.

    Attributes:
        endpoint: Target of the next request.
        sent: Spans that the collector accepted.
        dropped: Spans or events not exported, by reason.
        failures: Failed requests.
    """

    def __init__(self, client: Any, endpoint: HttpUrl, cluster: str, version: str) -> None:
        self._client = client
        self.endpoint = endpoint
        self._about = cluster, version
        self._queue: deque[Span] = deque()
        self._not_empty = trio.Event()
        self._is_down = False
        self.sent = 0
        self.failures = 0
        self.dropped: Counter[str] = Counter()

    def drop(self, reason: str, count: int) -> None:
        """Count spans or events that are not exported."""
        self.dropped[reason] += count

    def put(self, spans: Sequence[Span]) -> None:
        """Queue spans; drop the oldest if the queue is full."""
        self._queue.extend(spans)
        while len(self._queue) > QUEUED_MAX:
            self._queue.popleft()
            self.drop("queue_full", 1)
        if spans:
            self._not_empty.set()

    @property
    def queued(self) -> int:
        """Number of queued spans."""
        return len(self._queue)

    async def run(self) -> None:
        """Send queued spans. Does not return."""
        while True:
            if not self._queue:
                self._not_empty = trio.Event()
                await self._not_empty.wait()
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            body = encode(batch, *self._about)
            for wait_s in (*RETRY_S, None):
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
        """Return the error, "" on success, and whether a retry is useless."""
        import httpx

        why, is_final = "", False
        try:
            with trio.fail_after(ANSWER_S):
                headers = {"Content-Type": "application/x-protobuf"}
                answer = await self._client.post(self.endpoint.plain, content=body, headers=headers)
            if answer.status_code // 100 != 2:
                why, is_final = f"it answered {answer.status_code}", answer.status_code not in RETRY_STATUS
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
    """Export metrics of the sender."""
    metrics.counter("otlp_spans_total", "Spans that the collector accepted.", lambda: float(sender.sent))
    metrics.counter("otlp_failures_total", "Export requests that failed.", lambda: float(sender.failures))
    metrics.gauge("otlp_queued", "Spans in the export queue.", lambda: float(sender.queued))
    metrics.counter(
        "otlp_dropped_total",
        "Spans or trace events not exported, by reason.",
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
    """Reloads the collector's URL if ``admin.otlp_endpoint`` names a file that holds it.

    Args:
        endpoint: The setting.
        sender: Sends to that URL.
    """

    settings: Sequence[str] = ()  # a changed setting applies after a restart only

    def __init__(self, endpoint: HttpUrl, sender: "SpanSender") -> None:
        self._sender = sender
        self._held = _read(endpoint)

    def load(self, config: Any) -> tuple[HttpUrl, dict[str, str]]:
        """Read the file again.

        Raises:
            UserError: The file is invalid.
        """
        return _read(config.admin.otlp_endpoint)

    def current(self) -> tuple[HttpUrl, dict[str, str]]:
        """Return the URL in use."""
        return self._held

    def difference(self, loaded: tuple[HttpUrl, dict[str, str]]) -> list[str]:
        """Return the file if its content changed."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: tuple[HttpUrl, dict[str, str]]) -> None:
        """Use the new URL."""
        self._held = loaded
        self._sender.endpoint = loaded[0]


def _read(endpoint: HttpUrl) -> tuple[HttpUrl, dict[str, str]]:
    marks = secret_marks([endpoint.file] if endpoint.file is not None else [])
    return _with_path(endpoint.read("admin.otlp_endpoint")), marks


def _with_path(endpoint: HttpUrl) -> HttpUrl:
    """Return the URL, with OTLP's path if it has none; its query is kept."""
    parts = urlsplit(endpoint.plain)
    if parts.path.strip("/"):
        return endpoint
    return endpoint.replaced(urlunsplit(parts._replace(path="/v1/traces")))
