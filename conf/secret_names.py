"""Whether a name is that of a secret: for whatever shows settings, and for texts that leave the cluster.

A name with a word such as ``password`` is a secret's, unless its last word says that it is something about one:
``token_secret_algorithm``, ``password_file``. A name that nobody thought of is hidden rather than shown.
"""

import re

__all__ = ["ABOUT_SECRETS", "is_secret_name"]

SOUND = re.compile(r"passw|passphrase|secret|token$|credential|private|api_?key|psk", re.IGNORECASE)
ABOUT_SECRETS = ("acl", "algorithm", "audience", "ca", "claim", "file", "issuer", "max", "path", "url")  # last words


def is_secret_name(name: str) -> bool:
    """Return whether a setting or a field of this name may hold a secret; of a dotted name its last part decides."""
    last = name.rpartition(".")[2]
    return bool(SOUND.search(last)) and last.lower().rpartition("_")[2] not in ABOUT_SECRETS
