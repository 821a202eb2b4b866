"""Decides whether a name belongs to a secret, and masks values of settings.

A name with a word such as ``password`` is a secret's, unless its last word marks it as metadata:
``token_secret_algorithm``, ``password_file``. Unknown names are masked rather than shown.
"""

import re
from collections.abc import Mapping

from conf.urls import MASK, mask_urls

__all__ = ["ABOUT_SECRETS", "is_secret_name", "setting_text", "shown_value"]

SOUND = re.compile(r"passw|passphrase|secret|token$|credential|private|api_?key|psk", re.IGNORECASE)
ABOUT_SECRETS = ("acl", "algorithm", "audience", "ca", "claim", "file", "issuer", "max", "path", "url")  # last words


def is_secret_name(name: str) -> bool:
    """Return whether a setting or a field of this name may hold a secret; the last part of a dotted name decides."""
    last = name.rpartition(".")[2]
    return bool(SOUND.search(last)) and last.lower().rpartition("_")[2] not in ABOUT_SECRETS


def shown_value(name: str, value: object) -> object:
    """Return the value of a setting with secrets masked: numbers unchanged, texts with masked URLs."""
    if value is None or isinstance(value, bool | int | float):
        return MASK if value and is_secret_name(name) else value
    if isinstance(value, Mapping):
        return {key: shown_value(str(key), one) for key, one in value.items()}
    if value and is_secret_name(name):
        return MASK
    if isinstance(value, list | tuple | set | frozenset):
        return [shown_value(name, one) for one in value]
    return mask_urls(str(value))


def setting_text(name: str, value: object) -> str:
    """Return the masked value in the notation of a configuration file, without quotes."""
    return _text(shown_value(name, value))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return "" if value is None else str(value)
