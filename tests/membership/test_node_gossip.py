"""A node's load metrics are sent when they have changed."""

import pytest

from membership.node_gossip import is_news


@pytest.mark.parametrize(
    ("clients", "load", "since_s", "told"),
    [
        (10, 0.21, 60.0, False),  # a busy loop's load always varies: it was sent every two seconds before
        (10, 0.17, 60.0, True),
        (11, 0.20, 60.0, True),
        (11, 0.20, 1.0, False),
        (10, 0.31, 0.5, True),
    ],
)
def test_is_news_holds_for_changed_values(clients: int, load: float, since_s: float, told: bool) -> None:
    """Each transmission is 15 packets among three members, and work at each of them beside clients' messages."""
    assert is_news(10, 0.20, clients, load, since_s) is told
