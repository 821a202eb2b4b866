"""Fuzz target of Mosquitto's log lines, as a federation agent reads them: one byte for the topic, then lines.

No exception is raised; excluded topics stay excluded; filters stay within their limit; rows decode again.
"""

from __future__ import annotations

from gateways.federation.interest.interest import Interest, to_federated
from gateways.federation.interest.mosquitto import NOTICE, SUBSCRIBE, UNSUBSCRIBE, MosquittoLog
from gateways.spool_rows import Put

__all__ = ["LINES", "log_line"]

TOPICS = (SUBSCRIBE, UNSUBSCRIBE, NOTICE)
FILTERS_MAX = 16
LINES = (
    b"\x00" + b"1795623143: agent 2 " + SUBSCRIBE.encode(),
    b"\x001795623143: a client x 1 a/b\n\x001795623143: c 0 $share/g/t/#",
    b"\x001795623143: c 0 f\n\x011795623143: c f",
    b"\x021795623143: New client connected from 127.0.0.1:5 as a client x (p2, c1, k60, u'me').",
    b"\x021795623143: Client a client x disconnected.\n\x02Client c [127.0.0.1:5] disconnected: why",
    b"\x021795623143: Expiring client c due to timeout.",
    b"\x00c 1 " + b"long/" * 199,
)


def log_line(data: bytes) -> None:
    """Read lines; see the module."""
    interest = Interest(["agent"], filters_max=FILTERS_MAX)
    adapter = MosquittoLog(interest, "agent")
    for line in data.split(b"\n"):
        if line:
            adapter.received(1.0, TOPICS[line[0] % len(TOPICS)], line[1:])
    assert len(interest) <= FILTERS_MAX
    change = interest.take_change()
    for each in change.added if change is not None else ():
        assert to_federated(each) == each
    later = Interest(["agent"])
    later.restore((write.key, write.value) for write in interest.take_rows() if isinstance(write, Put))
    assert len(later) == len(interest)
