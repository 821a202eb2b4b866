"""Tests five real Mosquittos in a ring with an agent each, one of which forwards nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateways.federation.real_federation import (
    ROOT,
    Federation,
    Publisher,
    Site,
    Subscriber,
    needs_mosquitto,
    running,
    until,
)
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, needs_mosquitto]

RING = (("a", "x"), ("d", "x"), ("a", "p"), ("p", "q"), ("d", "q"))  # the path from a to d through x is the shorter one


class Withholding(Site):
    """A site whose agent withholds messages of others."""

    def start_agent(self) -> None:
        """Start the agent."""
        module = "tests.gateways.federation.withholding_agent"
        command = [sys.executable, "-m", module, "federate", "--config", str(self.folder / f"{self.name}.toml")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)


def test_paths_avoid_an_agent_that_forwards_nothing(tmp_path: Path) -> None:
    """A log line names it, as does ``federate status``, and messages take the longer path."""
    federation = Federation(tmp_path, "adpqx", RING, {"announce_s": 1.0}, kinds={"x": Withholding})
    site = federation.sites["a"]
    with running(federation):
        federation.wait_overlay()
        subscriber = Subscriber(federation.sites["d"].broker_port, "sub", "plant/#")
        federation.wait_members("plant/x", {"d"})
        publisher = Publisher(site.broker_port, "pub")
        for number in range(10):
            publisher.publish("plant/x", b"lost %d" % number)

        def neighbour() -> dict[str, object]:
            found: dict[str, object] = next(each for each in site.ask("status")["neighbours"] if each["name"] == "x")
            return found

        until(lambda: bool(neighbour()["passed_by"]), PATIENCE_S, "x to be passed by")
        assert neighbour()["not_passed_on"] == {"d": 10} and neighbour()["passed_by"] == "not_passed_on"
        line = next(line for line in site.command("status").stdout.splitlines() if line.startswith("neighbour x"))
        assert "passed by (not_passed_on), stores 10 messages for d that were not forwarded" in line
        publisher.publish("plant/x", b"around")
        until(lambda: subscriber.payloads[b"around"] == 1, PATIENCE_S, "the message by the other way")
        assert subscriber.paths[b"around"] == ["a", "p", "q", "d"]
        publisher.close()
        subscriber.close()
    logged = [line for line in site.agent_log.read_text().splitlines() if "did not come on" in line]
    assert len(logged) == 1 and "x has kept 10 messages for d" in logged[0]
