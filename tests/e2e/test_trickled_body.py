"""A request with a trickling body gets 408 at its timeout, and blocks no other caller meanwhile."""

import socket
import time

import httpx
import pytest

from tests.e2e.local_cluster import local_cluster
from tests.e2e.test_prometheus import served
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

TRICKLES = 20


def test_trickling_bodies_time_out() -> None:
    """One byte a second of a declared length of 1 000, by twenty unauthenticated callers."""
    with local_cluster("--edges", "1", "--admin-port", "0") as cluster:
        base = served(cluster)
        host, port = base.removeprefix("http://").removesuffix("/api/v1").split(":")
        head = (
            b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        streams = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(TRICKLES)]
        for stream in streams:
            stream.setblocking(False)
            stream.sendall(head)
        answers: dict[socket.socket, bytes] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(answers) < TRICKLES:
            assert time.monotonic() < deadline, answers.values()
            assert httpx.get(f"{base}/version", timeout=PATIENCE_S).is_success
            for stream in streams:
                if stream in answers:
                    continue
                try:
                    stream.sendall(b"[")
                    answers[stream] = stream.recv(4_096)
                except BlockingIOError:
                    continue
                except OSError:
                    answers[stream] = b""
            time.sleep(1.0)
        for stream in streams:
            stream.close()
    assert all(not answer or answer.startswith(b"HTTP/1.1 408") for answer in answers.values()), answers.values()
    assert any(answers.values()), "nobody was told"
