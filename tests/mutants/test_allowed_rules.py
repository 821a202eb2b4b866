"""A rule of ``wire/allowed.py`` that is taken away is noticed by the matrix, which passes with all of them in place."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("rule", "noticed"),
    [
        ("PUBLISH_ACK", "PUBLISH_ACK of a storage changed a edge"),
        ("own life", "Heartbeat of a edge changed a router"),
    ],
)
def test_the_matrix_notices_a_missing_rule(rule: str, noticed: str) -> None:
    command = [sys.executable, "-m", "tests.wire.allowed_matrix", "--without", rule]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 1, run.stderr[-2000:]
    assert noticed in run.stdout, run.stdout
