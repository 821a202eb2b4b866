"""Assertions of the loop are enabled in both forms where it is compiled in place (setup.py)."""

from typing import Any

import pytest

from tests.edge.loop.harness import Broker


def test_assertion_detects_destination_that_finishes_twice(hot: Any) -> None:
    """Without the assertion the count would fall below zero, and the message would never be acknowledged."""
    message = hot.state.PendingAck(1, 1, None, 0)
    with pytest.raises(AssertionError, match="twice"):
        Broker(hot).hot.send_pick(message, None)
