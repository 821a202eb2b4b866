"""An HTTP server as a sink: batches by signed POST, with an idempotency key.

2xx means done; 4xx except 408 and 429 rejects. All other results, including redirects, are retried, after Retry-After
if given. An answer is read up to a bound and a time.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import ssl
from collections.abc import Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import trio

from conf.bridge_settings import GatewaySettings, Webhook
from conf.errors import ExitCode, UserError
from conf.private_files import read_secret
from conf.url_settings import HttpUrl
from conf.urls import mask_urls
from gateways.bridges.batch_sink import BatchResult, BatchSink
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.map_bridge import build_sink, to_json
from gateways.bridges.pump import SinkDelivery
from gateways.bridges.running import Bridge, BridgeFinding
from gateways.transport import client_context

__all__ = ["WebhookSink", "build_webhook"]

ANSWER_BYTES_MAX = 64 * 1024
RETRY_AFTER_S_MAX = 3600.0
RETRIED = (408, 429)
NOT_IMPLEMENTED = 501  # answer to OPTIONS of a server without that method: it is reachable


def build_webhook(name: str, settings: Webhook, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from the cluster to an HTTP server.

    Raises:
      UserError: A configuration error, or the library is missing.
    """
    del gateway
    try:
        library = importlib.import_module("httpx")
    except ModuleNotFoundError:
        text = f"bridge.{name}: webhooks need the extra http: pip install 'stratamq[http]'"
        raise UserError(text, ExitCode.USAGE) from None
    url = settings.url.read(f"bridge.{name}.url")
    secret = b"" if settings.secret_file is None else read_secret(f"bridge.{name}", settings.secret_file)
    token = "" if settings.token_file is None else read_secret(f"bridge.{name}", settings.token_file).decode()
    context = client_context(settings.http_authority, None, None) if url.may_be_https else None
    return build_sink(
        name, settings, True, lambda flow: WebhookSink(library, settings, url, (secret, token), context, flow)
    )


class WebhookSink(BatchSink):
    """Sink of one flow, and one side of its bridge."""

    name = "webhook"

    def __init__(
        self,
        library: Any,
        settings: Webhook,
        url: HttpUrl,
        secrets: tuple[bytes, str],
        context: ssl.SSLContext | None,
        flow: BridgeFlow,
    ) -> None:
        super().__init__(flow, settings.batch_messages, settings.batch_bytes, settings.concurrency)
        self._library, self._settings, self._url = library, settings, url
        (self._secret, self._token), self._context = secrets, context
        self._client: Any = None
        self.is_up, self.reason = True, ""  # until a request fails: there is no connection to establish

    async def run(self) -> None:
        """Send batches until cancelled."""
        async with self._make() as self._client, trio.open_nursery() as nursery:
            for worker in range(self._settings.concurrency):
                nursery.start_soon(self.work, worker)

    def _make(self) -> Any:
        return self._library.AsyncClient(
            timeout=self._settings.timeout_s,
            follow_redirects=False,
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # no cookies: a server could fill the memory
            verify=self._context if self._context is not None else True,
        )

    async def write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        """Send one request."""
        single = self._settings.batch_messages == 1
        if single:
            body, kind = batch[0].record.payload, "application/octet-stream"
        else:
            body, kind = b"[" + b",".join(_object(each) for each in batch) + b"]", "application/json"
        headers = {"content-type": kind, "idempotency-key": _key(batch)}
        if single:
            headers["mqtt-topic"] = batch[0].record.message.topic.encode("unicode_escape").decode()
        if self._secret:
            headers["x-signature"] = "sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest()
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            with trio.fail_after(self._settings.timeout_s):
                return await self._post(body, headers)
        except trio.TooSlowError:
            return BatchResult(f"no answer within {self._settings.timeout_s:g} s")
        except self._library.HTTPError as error:
            return BatchResult(_text(error))
        except (ssl.SSLError, OSError) as error:
            return BatchResult(mask_urls(str(error)))

    async def _post(self, body: bytes, headers: dict[str, str]) -> BatchResult:
        async with self._client.stream("POST", self._url.plain, content=body, headers=headers) as answer:
            size = 0
            async for part in answer.aiter_raw():
                size += len(part)
                if size > ANSWER_BYTES_MAX:
                    break  # the status is sufficient
            status = answer.status_code
            if 200 <= status < 300:
                return BatchResult()
            text = f"status {status}"
            if 400 <= status < 500 and status not in RETRIED:
                return BatchResult(text, f"status_{status}")
            if 300 <= status < 400:
                text += ", a redirect (not followed)"
            return BatchResult(text, "", _seconds(answer.headers.get("retry-after", "")))

    async def check(self) -> list[BridgeFinding]:
        """Send OPTIONS without a body: checks that the server is reachable and its certificate valid."""
        where = f"webhook {self._url}"
        try:
            with trio.fail_after(self._settings.timeout_s):
                async with self._make() as client, client.stream("OPTIONS", self._url.plain) as answer:
                    status = answer.status_code  # the body may have no end
        except trio.TooSlowError:
            return [BridgeFinding(False, where, "no answer")]
        except (self._library.HTTPError, ssl.SSLError, OSError) as error:
            return [BridgeFinding(False, where, _text(error))]
        return [
            BridgeFinding(status < 500 or status == NOT_IMPLEMENTED, where, f"answers OPTIONS with status {status}")
        ]


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {mask_urls(str(error))}"


def _object(sending: SinkDelivery) -> bytes:
    found = json.loads(to_json(sending.record.message, sending.record.payload))
    if sending.record.target:
        found["target"] = sending.record.target
    found["reference"] = sending.record.message.reference
    return json.dumps(found, ensure_ascii=False).encode()


def _key(batch: Sequence[SinkDelivery]) -> str:
    """Return the same key for the same messages; QoS 0 messages are never resent, and use their timestamp."""
    names = [
        each.record.message.reference or f"{each.token}:{each.record.message.at_ms}:{each.record.message.topic}"
        for each in batch
    ]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


def _seconds(text: str) -> float | None:
    return min(float(text), RETRY_AFTER_S_MAX) if text.isdecimal() else None
