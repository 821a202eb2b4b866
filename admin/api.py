"""Client of the HTTP service: one request per call, with a bearer token.

Calls block; use a thread in an event loop. The token is sent over TLS or to this host only; redirects are not followed,
so no other server receives it. Responses are bounded. ``admin/http`` defines the calls.
"""

import http.client
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from admin.http.problems import DO
from conf.errors import ExitCode, UserError
from conf.private_files import check_file, check_private
from conf.urls import shown_url
from wire.decoding import Unreadable, strictly

__all__ = ["Api", "ApiCall", "ApiError", "read_answer", "read_token"]

BASE = "/api/v1"
ANSWER_BYTES_MAX = 64 * 1024 * 1024
TOKEN_BYTES_MAX = 4096
OTHERS = {431: "the request is longer than 16 KiB: send it to a router, without --api"}
T = TypeVar("T")
EXIT_CODES = {400: ExitCode.USAGE, 503: ExitCode.NOT_READY}


class ApiCall(NamedTuple):
    """A request: ``path`` is quoted, ``body`` is sent as JSON."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Mapping[str, Any] | None = None

    def line(self) -> str:
        """Return the line that ``--show-api`` prints."""
        query_text = "?" + urlencode(self.query) if self.query else ""
        body = " " + msgspec.json.encode(self.body).decode() if self.body is not None else ""
        return f"{self.method} {BASE}{self.path}{query_text}{body}"

    @classmethod
    def of(cls, method: str, *parts: str, **query: str) -> "ApiCall":
        """Return a call for a path of these parts."""
        return cls(method, "".join(f"/{quote(part, safe='')}" for part in parts), tuple(query.items()))


class ApiError(UserError):
    """The service rejected the call.

    Attributes:
        status: HTTP status.
        result: Result in the problem response, usually None.
    """

    def __init__(self, message: str, exit_code: int, status: int, result: Any) -> None:
        super().__init__(message, exit_code)
        self.status, self.result = status, result


class Api:
    """One HTTP service.

    Args:
        url: URL that the service prints, with or without the path.
        token: Created by ``stratamq token create``.

    Raises:
        UserError: The URL is invalid, or the token would be sent unencrypted to another host.
    """

    def __init__(self, url: str, token: str) -> None:
        where = f"--api {shown_url(url)[:200]!r}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise UserError(f"{where}: the port must be a number up to 65535", ExitCode.USAGE) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.rstrip("/") not in ("", BASE):
            raise UserError(f"{where}: expected http(s)://host:port, as the service prints it", ExitCode.USAGE)
        self._is_https = parts.scheme == "https"
        if not self._is_https and not _is_loopback(parts.hostname):
            raise UserError(
                f"{where}: use https, or an address of this host: the token must not be sent unencrypted",
                ExitCode.USAGE,
            )
        self._host, self._port, self._token = parts.hostname, port or (443 if self._is_https else 80), token
        self.address = shown_url(f"{parts.scheme}://{parts.netloc}")

    def ask(self, call: ApiCall, timeout_s: float, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Return the status and the body of a successful response.

        Raises:
            UserError: The service does not respond (exit code 4).
            ApiError: The service rejected the call.
        """
        target = f"{BASE}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        sent = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", **(headers or {})}
        body = None
        if call.body is not None:
            body, sent["Content-Type"] = msgspec.json.encode(call.body), "application/json"
        connection = self._connection(timeout_s)
        try:
            connection.request(call.method, target, body, sent)
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise UserError(f"cannot connect to {self.address}: {why}", ExitCode.NOT_READY) from None
        finally:
            connection.close()
        if len(data) > ANSWER_BYTES_MAX:
            raise UserError(f"{self.address} answered more than {ANSWER_BYTES_MAX} bytes: request fewer rows")
        if not 200 <= response.status < 300:
            raise _refused(self.address, response.status, data)
        return response.status, data

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if not self._is_https:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=ssl.create_default_context()
        )


def read_answer(address: str, data: bytes, kind: type[T]) -> T:
    """Return the body of a successful response, decoded.

    Raises:
        UserError: The body is invalid: another program or another release answered.
    """
    try:
        return strictly(msgspec.json.Decoder(kind).decode, "answer")(data)
    except Unreadable as error:
        raise UserError(f"{address} is not a service of this release: {error}") from None


_problem = strictly(msgspec.json.Decoder(dict[str, Any]).decode, "problem")


def read_token(path: Path | None) -> str:
    """Return the token on the first line of a file.

    Raises:
        UserError: No file is named, or it is unreadable, accessible to others or without a token.
    """
    if path is None:
        raise UserError("--api requires --token-file: create a token with `stratamq token create NAME`", ExitCode.USAGE)
    try:
        check_file(path, "token", TOKEN_BYTES_MAX)
        check_private(path, "token")
        token = path.read_text("ascii").strip().partition("\n")[0].strip()
    except (OSError, UnicodeError) as error:
        raise UserError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}", ExitCode.USAGE) from None
    if not token or not token.isprintable() or " " in token:
        raise UserError(f"--token-file {path}: its first line is not a token", ExitCode.USAGE)
    return token


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refused(address: str, status: int, data: bytes) -> ApiError:
    """Return the error of a problem response, or of the status alone."""
    try:
        problem = _problem(data)
        detail, do = str(problem["detail"]), str(problem.get("do") or "")
    except (Unreadable, KeyError):
        problem, detail, do = {}, f"{address} answered {status}", OTHERS.get(status, "")
    if do == DO.get(str(problem.get("code"))):  # advice for HTTP calls, not for the command line
        do = ""
    line = f"{detail}; {do}" if do else detail
    return ApiError(line.split("\n")[0], EXIT_CODES.get(status, ExitCode.FAILED), status, problem.get("result"))
