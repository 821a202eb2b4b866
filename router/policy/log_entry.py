"""Entries of the routers' log: map commands and policy commands, distinguished by their tags."""

from access.policy.commands import PolicyCommand, decode_policy_command
from router.map.commands import Command, decode_command
from wire.decoding import Unreadable

__all__ = ["LogCommand", "read_entry"]

LogCommand = Command | PolicyCommand


def read_entry(data: bytes) -> LogCommand:
    """Return the command of an entry.

    Raises:
        Unreadable: The entry is no known command, perhaps of a later version.
    """
    try:
        return decode_command(data)
    except Unreadable as about_map:
        try:
            return decode_policy_command(data)
        except Unreadable as about_policy:
            raise Unreadable(f"{about_map}; {about_policy}") from None
