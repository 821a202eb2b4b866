"""Common parts of questions over HTTP: TLS as settings say, and an answer that is read to its bound and no further."""

import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import ExitCode, UserError
from wire.links.tls import load_authority, load_certificate

if TYPE_CHECKING:
    import httpx

__all__ = ["ANSWER_BYTES_MAX", "needs_httpx", "read_body", "tls_context"]

ANSWER_BYTES_MAX = 65_536


def needs_httpx(subject: str) -> None:
    """Check that the extra is installed; ``httpx`` is imported by those edges alone that ask something.

    Raises:
        UserError: It is not.
    """
    try:
        import httpx  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"{subject} needs the extra: pip install 'stratamq[access]' (no module {error.name})", ExitCode.USAGE
        ) from None
    for library in ("httpx", "httpcore"):  # at info they write a line for each login, at debug what was sent
        logging.getLogger(library).setLevel(logging.WARNING)


def tls_context(authority: Path | None, shown: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Return the context that verifies a server.

    Args:
        authority: PEM; None for the authorities of the system.
        shown: Certificate and key that this side shows; None for none.
    Raises:
        UserError: A file is unusable.
    """
    if authority is not None:
        load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), authority)  # judged first: a pipe would hold the node
    context = ssl.create_default_context(cafile=authority)
    if shown is not None:
        load_certificate(context, *shown)
    return context


async def read_body(answer: "httpx.Response") -> bytes | None:
    """Return the body as it came, None as soon as it is longer than ``ANSWER_BYTES_MAX``."""
    content = bytearray()
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > ANSWER_BYTES_MAX:
            return None
    return bytes(content)
