"""A whole view read at once, for tests."""

from access.policy.view import PolicyView, ViewReading
from wire.decoding import Payload

__all__ = ["decode_view"]


def decode_view(data: Payload) -> PolicyView:
    """Return a view; raises Unreadable."""
    reading = ViewReading(data)
    while not reading.advance():
        pass
    return reading.view
