"""The list of a cluster's subscriptions, read from its HTTP service in pages; the shell of ``stratamq.py``.

One request at a time, in a thread; every answer has a bound and a time. The list begins when the broker has granted the
events, so that nothing falls between the two. Decision: docs/adr/0165-subscriptions-of-our-own-cluster.md.
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

__all__ = ["ClusterList", "cluster_list"]

logger = logging.getLogger(__name__)

PATH = "/api/v1/subscriptions"
COLUMNS = "client_id,filter,qos"
PAGE_ROWS = 1_000
PAGE_BYTES_MAX = 4 * 1024 * 1024
PAGE_S = 15.0
PAGES_MAX = 5_000
LOOK_S = 0.25
AGAIN_S = 5.0  # after a list that was not whole
WHY_MAX = 200


class _Failed(Exception):
    """No page came; the text is for the operator."""


def cluster_list(
    settings: FederateSettings, adapter: SessionEventAdapter, hears: Callable[[], bool], took: Callable[[], None]
) -> ClusterList:
    """Return the reader that the settings want.

    Raises:
        UserError: The address is none, the token cannot be read, or everybody on the way would read it.
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
        raise UserError(f"{where}: a token goes over https, or to this host", ExitCode.USAGE)
    assert settings.api_token_file is not None
    token = read_secret("federate.api_token_file", settings.api_token_file).decode("ascii", "replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UserError(f"federate.api_token_file {settings.api_token_file}: no token", ExitCode.USAGE)
    context = client_context(settings.api_authority, None, None) if is_https else None
    place = (parts.hostname, port or (443 if is_https else 80))
    return ClusterList(adapter, partial(_ask, place, context, token), settings.list_s, hears, took, time.time)


class ClusterList:
    """See the module.

    Attributes:
        why: Why no whole list came, "" while the last one was whole.
    """

    def __init__(
        self,
        adapter: SessionEventAdapter,
        ask: Callable[[str], bytes],
        list_s: float,
        hears: Callable[[], bool],
        took: Callable[[], None],
        wall_s: Callable[[], float],
    ) -> None:
        """Set up.

        Args:
            ask: Returns the page behind a cursor; called in a thread.
            hears: Whether the broker has granted the events.
            took: Called when the interest may have changed.
            wall_s: UTC.
        """
        self.why = "not read yet"
        self._adapter, self._ask, self._list_s, self._hears, self._took = adapter, ask, list_s, hears, took
        self._wall_s = wall_s

    async def run(self) -> None:
        """Read lists, for ever."""
        due = 0.0
        while True:
            if not self._hears() or not (self._adapter.is_due or trio.current_time() >= due):
                await trio.sleep(LOOK_S)
                continue
            why = await self._read()
            if why and why != self.why:
                say(logger, "federation.list_failed", why=why)
            elif not why and self.why:
                say(logger, "federation.list_read", filters=self._adapter.listed())
            self.why = why
            due = trio.current_time() + self._list_s
            if why:
                await trio.sleep(AGAIN_S)
                due = 0.0

    async def _read(self) -> str:
        """Read one list; return why it is not whole, "" if it is."""
        self._adapter.begin_list(self._wall_s())
        cursor, why = "", ""
        for _ in range(PAGES_MAX):
            try:
                data = await trio.to_thread.run_sync(self._ask, cursor, abandon_on_cancel=True)
                page = _page(data)
            except _Failed as failed:
                self._adapter.end_list(False)
                return str(failed)
            self._adapter.page(page["rows"])
            self._took()
            if not page["complete"] or page["restarted"]:
                why = f"not all nodes answered: {str(page['partial'])[:WHY_MAX]}"
            cursor = page["cursor"]
            if not cursor:
                break
        else:
            why = f"more than {PAGES_MAX} pages"
        is_whole = self._adapter.end_list(not why)
        self._took()
        return why if why or is_whole else "more filters than federate.interests_max, or rows that are none"


def _page(data: bytes) -> dict[str, Any]:
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


def _ask(place: tuple[str, int], context: ssl.SSLContext | None, token: str, cursor: str) -> bytes:
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
