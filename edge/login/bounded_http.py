"""Common parts of questions over HTTP: TLS as settings say, and an answer that is read to its bound and no further."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import ExitCode, UserError

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


def tls_context(authority: Path | None, shown: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Return the context that verifies a server.

    Args:
        authority: PEM; None for the authorities of the system.
        shown: Certificate and key that this side shows; None for none.
    Raises:
        UserError: A file is unusable.
    """
    try:
        context = ssl.create_default_context(cafile=str(authority) if authority is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{authority}: holds no authority that can be used: {error}") from None
    if shown is not None:
        try:
            context.load_cert_chain(*shown, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{shown[0]} and {shown[1]}: no certificate with its key: {error}") from None
    return context


def _no_password() -> str:
    """Answer nothing where OpenSSL would ask the terminal: a key with a password is an error in one line."""
    return ""


async def read_body(answer: "httpx.Response") -> bytes | None:
    """Return the body as it came, None as soon as it is longer than ``ANSWER_BYTES_MAX``."""
    content = bytearray()
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > ANSWER_BYTES_MAX:
            return None
    return bytes(content)
