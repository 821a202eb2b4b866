"""Messages for commands that matched nothing, for the command line and the HTTP service.

A node that is asked to close a connection or to pause a listener returns the number that it had. If all nodes return 0,
the operator's argument was wrong.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["nothing_found"]

NAME_MAX = 200  # characters of a name in a message


def nothing_found(verb: str, arguments: Mapping[str, Any], result: Any) -> str:
    """Return the not-found message of a command, "" if a node matched or none reports a count."""
    entry = _WORDS.get(verb)
    if entry is None or not isinstance(result, Mapping) or result.get("waits_for"):
        return ""
    if any(row["count"] or row["error"] for row in result.get("nodes", ())):
        return ""
    name, text, where = entry
    name_text = str(arguments.get(name, ""))[:NAME_MAX]
    node = arguments.get("node")
    return f"{node or 'no edge'} has {'no' if node else 'a'} {text} {name_text!r}: {where}"


_LISTENERS = ("listener", "listener", "see `stratamq listener list`")
_WORDS = {  # argument with the name, noun, and command that lists the existing ones
    "client kick": ("client_id", "connection of client", "`stratamq client list` shows them"),
    "listener pause": _LISTENERS,
    "listener resume": _LISTENERS,
}
