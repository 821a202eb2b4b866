"""Orders that found nothing: what is missing, in the words of the command line and of the HTTP service.

Each node that is asked to end a connection, or to pause a listener, answers how many it had; that all of them have none
is no mistake of theirs, and one of whoever gave the order.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["nothing_found"]

NAME_MAX = 200  # characters of a name that are told


def nothing_found(verb: str, arguments: Mapping[str, Any], result: Any) -> str:
    """Return what no node has of what a verb is about, "" where one has it, or where nobody counts such."""
    words = _WORDS.get(verb)
    if words is None or not isinstance(result, Mapping) or result.get("waits_for"):
        return ""
    if any(row["count"] or row["error"] for row in result.get("nodes", ())):
        return ""
    name, text, where = words
    told = str(arguments.get(name, ""))[:NAME_MAX]
    return f"{arguments.get('node') or 'no edge'} has {'no' if arguments.get('node') else 'a'} {text} {told!r}: {where}"


_LISTENERS = ("listener", "listener", "see `stratamq listener list`")
_WORDS = {  # argument that names it, a word for it, and where those that there are stand
    "client kick": ("client_id", "connection of client", "`stratamq client list` shows them"),
    "listener pause": _LISTENERS,
    "listener resume": _LISTENERS,
}
