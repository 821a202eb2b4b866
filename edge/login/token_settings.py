"""The step ``token`` of a listener from its settings: keys of files, and the set at a URL.

Only this module and the step import ``PyJWT``: an edge without tokens runs without the extra ``access``.
"""

from typing import TYPE_CHECKING

from access.files import AccessFileError, read_access_file, read_secret
from access.identity.principal import AuthenticationStep, no_acl
from conf.edge_settings import ListenerSettings
from conf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from access.identity.key_set import KeySource, TokenKey

__all__ = ["token_step"]

KEY_BYTES_MAX = 64 * 1024


def token_step(listener: ListenerSettings, source: "KeySource | None") -> AuthenticationStep:
    """Return the step; ``source`` has the keys of ``token_jwks_url``, None without one.

    Raises:
        UserError: A file is unusable, or the extra is not installed.
    """
    try:
        from access.identity.key_set import KeySet
        from access.identity.tokens import TokenStep
        from access.rules.claims import read_acl
    except ModuleNotFoundError as error:
        raise UserError(
            f"listener {listener.name}: tokens need the extra: pip install 'stratamq[access]' (no module {error.name})",
            ExitCode.USAGE,
        ) from None
    return TokenStep(
        KeySet(_keys(listener), source),
        listener.token_issuer,
        listener.token_audience,
        listener.token_user_claim,
        read_acl if listener.token_acl else no_acl,
    )


def _keys(listener: ListenerSettings) -> "list[TokenKey]":
    from access.identity.key_set import key_of_pem, key_of_secret

    keys = []
    for path in listener.token_keys:
        try:
            keys.append(key_of_pem(read_access_file(path, KEY_BYTES_MAX), path.stem))
        except ValueError as error:
            raise AccessFileError(path, 0, str(error)) from None
    secret = listener.token_secret
    if secret is not None:
        try:
            content = read_secret(secret, KEY_BYTES_MAX).removesuffix(b"\n")
            keys.append(key_of_secret(content, listener.token_secret_algorithm))
        except ValueError as error:
            raise AccessFileError(secret, 0, str(error)) from None
    return keys
