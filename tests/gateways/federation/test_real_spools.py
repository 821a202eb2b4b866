"""Tests a running agent's spool whose disk is full for a while or no longer writable, with real programs."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateways.federation.real_federation import (
    Federation,
    Publisher,
    Subscriber,
    needs_mosquitto,
    running,
    until,
)
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, needs_mosquitto]

FIRST, MORE = 50, 300
LARGE = b"x" * 4_000


@contextmanager
def story(folder: Path) -> Iterator[tuple[Federation, Publisher, Subscriber]]:
    """Two brokers with a number of delivered messages."""
    federation = Federation(folder, ["a", "b"], [("a", "b")])
    with running(federation):
        federation.wait_overlay()
        subscriber = Subscriber(federation.sites["b"].broker_port, "sub", "plant/#")
        federation.wait_members("plant/x", {"b"})
        publisher = Publisher(federation.sites["a"].broker_port, "pub")
        for number in range(FIRST):
            publisher.publish("plant/x", b"%d " % number)
        until(lambda: len(subscriber.payloads) == FIRST, PATIENCE_S, "the first messages")
        yield federation, publisher, subscriber
        until(lambda: len(subscriber.payloads) == FIRST + MORE, PATIENCE_S, "all messages")
        time.sleep(1)  # for late duplicates
        assert set(subscriber.payloads.values()) == {1}
        subscriber.close()
        publisher.close()


def test_a_disk_without_room(tmp_path: Path) -> None:
    """The broker keeps messages that the agent cannot store; with free space all messages are delivered once."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root: a small disk is mounted")
    disk = tmp_path / "a"
    disk.mkdir(mode=0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "spool", disk], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        with story(tmp_path) as (federation, publisher, subscriber):
            a, b = federation.sites["a"], federation.sites["b"]
            b.kill("agent")
            for number in range(FIRST, FIRST + MORE):
                publisher.publish("plant/x", b"%d " % number + LARGE)
            until(lambda: "room in the spool" in page(a.page_port), PATIENCE_S, "no room")
            assert a.agent is not None and a.agent.poll() is None
            assert 0 < a.ask("status")["messages_kept"] < MORE and len(subscriber.payloads) == FIRST
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            b.start_agent()
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def test_a_disk_that_stores_nothing_any_more(tmp_path: Path) -> None:
    """As with a disk remounted read-only: the agent ends with one line, and the broker keeps the unstored messages."""
    with story(tmp_path) as (federation, publisher, subscriber):
        a = federation.sites["a"]
        assert a.agent is not None
        resource.prlimit(a.agent.pid, resource.RLIMIT_FSIZE, (4_096, 4_096))
        for number in range(FIRST, FIRST + MORE):
            publisher.publish("plant/x", b"%d " % number)
        assert a.agent.wait(PATIENCE_S) == 1
        (line,) = [each for each in a.agent_log.read_text().splitlines() if not each.startswith("{")]
        assert line == f"stratamq: the spool {tmp_path}/a/spool cannot be written: disk I/O error"
        assert len(subscriber.payloads) == FIRST
        a.start_agent()


def page(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
