"""Reader of a cluster's subscriptions from its HTTP service, in pages; the shell of ``stratamq.py``.

One request at a time, in a thread; every answer is bounded in size and time. A list starts after the broker has granted
the event filters, so that no change is missed between them.
Decision: docs/adr/0165-subscriptions-of-our-own-cluster.md.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import trio

from conf.errors import ExitCode, UserError
from conf.events import say
from conf.federate_settings import FederateSettings
from conf.private_files import read_secret
from gateways.federation.interest.stratamq import SessionEventAdapter
from gateways.transport import client_context

__all__ = ["ClusterList", "build_cluster_list"]

logger = logging.getLogger(__name__)

PATH = "/api/v1/subscriptions"
COLUMNS = "client_id,filter,qos"
PAGE_ROWS = 1_000
PAGE_BYTES_MAX = 4 * 1024 * 1024
PAGE_S = 15.0
PAGES_MAX = 5_000
CHECK_S = 0.25
RETRY_S = 5.0  # after an incomplete list
WHY_MAX = 200


class _Failed(Exception):
    """A page could not be read; the text is for the operator."""


def build_cluster_list(
    settings: FederateSettings,
    adapter: SessionEventAdapter,
    is_listening: Callable[[], bool],
    on_interest: Callable[[], None],
) -> ClusterList:
    """Return the configured reader.

    Raises:
      UserError: The address is invalid, the token is unreadable, or it would be sent unencrypted.
    """
    where = f"federate.api {settings.api}"
    url = settings.api.read("federate.api").plain
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UserError(f"{where}: the port is a number up to 65535", ExitCode.USAGE) from None
    is_https = parts.scheme == "https"
    if not parts.hostname or parts.path.rstrip("/") or "?" in url or "#" in url:
        raise UserError(f"{where}: write http(s)://host:port", ExitCode.USAGE)
    if not is_https and not _is_loopback(parts.hostname):
        raise UserError(f"{where}: a token needs https, except to this host", ExitCode.USAGE)
    assert settings.api_token_file is not None
    token = read_secret("federate.api_token_file", settings.api_token_file).decode("ascii", "replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UserError(
            f"federate.api_token_file {settings.api_token_file}: the token is empty or not printable ASCII",
            ExitCode.USAGE,
        )
    context = client_context(settings.api_authority, None, None) if is_https else None
    place = (parts.hostname, port or (443 if is_https else 80))
    return ClusterList(
        adapter, partial(_request_page, place, context, token), settings.list_s, is_listening, on_interest, time.time
    )


class ClusterList:
    """See the module.

    Attributes:
      why: Why the last list was incomplete, "" if it was complete.
    """

    def __init__(
        self,
        adapter: SessionEventAdapter,
        request_page: Callable[[str], bytes],
        list_s: float,
        is_listening: Callable[[], bool],
        on_interest: Callable[[], None],
        wall_s: Callable[[], float],
    ) -> None:
        """Set up.

        Args:
          request_page: Returns the page at a cursor; called in a thread.
          is_listening: Whether the broker has granted the event filters.
          on_interest: Called when the interest may have changed.
          wall_s: UTC.
        """
        self.why = "not read yet"
        self._adapter, self._request_page, self._list_s, self._is_listening, self._on_interest = (
            adapter,
            request_page,
            list_s,
            is_listening,
            on_interest,
        )
        self._wall_s = wall_s

    async def run(self) -> None:
        """Read lists until cancelled."""
        due = 0.0
        while True:
            if not self._is_listening() or not (self._adapter.is_due or trio.current_time() >= due):
                await trio.sleep(CHECK_S)
                continue
            why = await self._read()
            if why and why != self.why:
                say(logger, "federation.list_failed", why=why)
            elif not why and self.why:
                say(logger, "federation.list_read", filters=self._adapter.listed())
            self.why = why
            due = trio.current_time() + self._list_s
            if why:
                await trio.sleep(RETRY_S)
                due = 0.0

    async def _read(self) -> str:
        """Read one list; return why it is incomplete, "" if it is complete."""
        self._adapter.begin_list(self._wall_s())
        cursor, why = "", ""
        for _ in range(PAGES_MAX):
            try:
                data = await trio.to_thread.run_sync(self._request_page, cursor, abandon_on_cancel=True)
                page = _parse_page(data)
            except _Failed as failed:
                self._adapter.end_list(False)
                return str(failed)
            self._adapter.page(page["rows"])
            self._on_interest()
            if not page["complete"] or page["restarted"]:
                why = f"not all nodes answered: {str(page['partial'])[:WHY_MAX]}"
            cursor = page["cursor"]
            if not cursor:
                break
        else:
            why = f"more than {PAGES_MAX} pages"
        is_whole = self._adapter.end_list(not why)
        self._on_interest()
        return why if why or is_whole else "more filters than federate.interests_max, or invalid rows"


def _parse_page(data: bytes) -> dict[str, Any]:
    try:
        page = json.loads(data)
        rows, cursor = page["rows"], page.get("cursor", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Failed("no service of a cluster answers there: the answer is no list") from None
    if not isinstance(rows, list) or not isinstance(cursor, str):
        raise _Failed("no service of a cluster answers there: the answer is no list")
    return {
        "rows": rows,
        "cursor": cursor,
        "complete": page.get("complete", True) is True,
        "restarted": page.get("restarted", []),
        "partial": page.get("partial", []),
    }


def _request_page(place: tuple[str, int], context: ssl.SSLContext | None, token: str, cursor: str) -> bytes:
    """Return one page."""
    query = {"limit": str(PAGE_ROWS), "columns": COLUMNS} | ({"cursor": cursor} if cursor else {})
    connection = (
        http.client.HTTPConnection(*place, timeout=PAGE_S)
        if context is None
        else http.client.HTTPSConnection(*place, timeout=PAGE_S, context=context)
    )
    address = f"{place[0]}:{place[1]}"
    try:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        connection.request("GET", f"{PATH}?{urlencode(query)}", None, headers)
        answer = connection.getresponse()
        data = answer.read(PAGE_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Failed(f"{address}: {str(error)[:WHY_MAX] or type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise _Failed(f"{address}: status {answer.status}")
    if len(data) > PAGE_BYTES_MAX:
        raise _Failed(f"{address}: a page of more than {PAGE_BYTES_MAX} bytes")
    return data


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
