"""Common parts of HTTP requests: TLS from the settings, and bounded reads of response bodies."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from conf.errors import ExitCode, UserError
from conf.urls import mask_urls
from wire.decoding import plain_text
from wire.links.tls import load_authority, load_certificate

if TYPE_CHECKING:
    import httpx

    from conf.edge_settings import ListenerSettings
    from conf.url_settings import HttpUrl, KeySetUrl, ProtectedUrl

__all__ = ["ANSWER_BYTES_MAX", "UrlSetting", "error_text", "needs_httpx", "read_body", "server_url", "tls_context"]

ANSWER_BYTES_MAX = 65_536
UrlSetting = Literal["http_url", "ocsp_url", "token_jwks_url"]


def needs_httpx(subject: str) -> None:
    """Check that the extra is installed; only edges that send requests import ``httpx``.

    Raises:
        UserError: It is not.
    """
    try:
        import httpx  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"{subject} needs the extra: pip install 'stratamq[access]' (no module {error.name})", ExitCode.USAGE
        ) from None


def tls_context(authority: Path | None, shown: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Return the context that verifies a server.

    Args:
        authority: PEM; None for the authorities of the system.
        shown: Certificate and key of this side; None for none.

    Raises:
        UserError: A file is unusable.
    """
    if authority is not None:
        load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), authority)  # checked first: a pipe would block the node
    context = ssl.create_default_context(cafile=authority)
    if shown is not None:
        load_certificate(context, *shown)
    return context


def server_url(listener: "ListenerSettings", setting: UrlSetting) -> "HttpUrl | KeySetUrl | ProtectedUrl":
    """Return the URL of a listener's setting, read from its file if it names one.

    Raises:
        UserError: The file is unusable, or its scheme does not fit the TLS settings.
    """
    where = f"listener {listener.name}: {setting}"
    url = getattr(listener, setting).read(where)
    beside = {"http_url": (listener.http_ca, listener.http_key), "token_jwks_url": (listener.token_jwks_ca,)}
    if any(beside.get(setting, ())) and not url.may_be_https:
        raise UserError(f"{where}: {url}: authority and certificate are for a URL that begins with https://")
    return url  # type: ignore[no-any-return]


def error_text(error: Exception) -> str:
    """Return a library's error text of a failed request, escaped and with masked URLs."""
    return plain_text(mask_urls(str(error)))


async def read_body(answer: "httpx.Response") -> bytes | None:
    """Return the raw body, None as soon as it is longer than ``ANSWER_BYTES_MAX``."""
    content = bytearray()
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > ANSWER_BYTES_MAX:
            return None
    return bytes(content)
