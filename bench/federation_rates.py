"""The cost of a message at each agent of a line of three, and the rate with synced spools.

Brokers a, b and c; a publisher at a, a subscriber at c; clients are Mosquitto's own. Two loads: *steady*, where only
its broker limits the publisher; *waiting*, where the measured agent is stopped until all messages
are queued before it, so that it alone limits the rate and works in batches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.gateways.federation.real_federation import Federation, running, until

__all__ = ["PAYLOAD_BYTES", "processor_s", "through_a_line"]

NAMES = ["a", "b", "c"]
LINKS = [("a", "b"), ("b", "c")]
PAYLOAD_BYTES = 256
TIMEOUT_S = 120.0
BROKER = ("max_inflight_messages 1000",)


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pid(federation: Federation, name: str) -> int:
    agent = federation.sites[name].agent
    assert agent is not None
    return agent.pid


def _read(federation: Federation, name: str, count: int) -> subprocess.Popen[bytes]:
    """Start a subscriber that ends when so many messages have come."""
    port = str(federation.sites[name].broker_port)
    words = ["mosquitto_sub", "-h", "127.0.0.1", "-p", port, "-t", "rate/#", "-q", "1", "-C", str(count)]
    return subprocess.Popen([*words, "-i", f"reader-{name}"], stdout=subprocess.DEVNULL)


def _publish(federation: Federation, name: str, count: int) -> subprocess.Popen[bytes]:
    """Start a publisher of so many messages."""
    port = str(federation.sites[name].broker_port)
    words = ["mosquitto_pub", "-h", "127.0.0.1", "-p", port, "-t", "rate/x", "-q", "1", "-l"]
    source = federation.folder / "lines"
    source.write_bytes(b"".join(b"%0*d\n" % (PAYLOAD_BYTES, number) for number in range(count)))
    with source.open("rb") as lines:
        return subprocess.Popen(words, stdin=lines)


def through_a_line(count: int, still: str) -> tuple[float, dict[str, float]]:
    """Send messages from a to c.

    Args:
        count: Number of messages.
        still: Agent that is stopped until its neighbour has all; "" for a steady stream.

    Returns:
        Messages a second in wall time, and CPU time per message in us by agent.
    """
    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name), NAMES, LINKS)
        for site in federation.sites.values():
            site.further = BROKER
        with running(federation):
            federation.wait_overlay(60)
            reader = _read(federation, "c", count)
            federation.wait_members("rate/x", {"c"})
            if still:
                os.kill(_pid(federation, still), signal.SIGSTOP)
                _publish(federation, "a", count).wait(TIMEOUT_S)
                until(lambda: _kept(federation, "a") >= count, TIMEOUT_S, "all in the spool of a")
            used = {each: processor_s(_pid(federation, each)) for each in NAMES}
            begun = time.monotonic()
            if still:
                os.kill(_pid(federation, still), signal.SIGCONT)
            else:
                _publish(federation, "a", count)
            if reader.wait(TIMEOUT_S):
                raise RuntimeError("the subscriber failed")
            took = time.monotonic() - begun
            spent = {each: (processor_s(_pid(federation, each)) - used[each]) / count * 1e6 for each in NAMES}
            return count / took, spent


def _kept(federation: Federation, name: str) -> int:
    return int((federation.sites[name].ask("status") or {"messages_kept": 1})["messages_kept"])
