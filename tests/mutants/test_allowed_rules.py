"""The matrix detects a removed rule of ``wire/links/allowed.py``.

Hostile seeds detect removed rules of the sender's role (``hostile_seeds.py``).
"""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("rule", "noticed"),
    [
        ("PUBLISH_ACK", "PUBLISH_ACK of a storage changed a edge"),
        ("own incarnation", "Heartbeat of a edge changed a router"),
        ("primary", "FireWill of a storage changed a edge"),
    ],
)
def test_matrix_detects_missing_rule(rule: str, noticed: str) -> None:
    command = [sys.executable, "-m", "tests.wire.allowed_matrix", "--without", rule]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 1, run.stderr[-2000:]
    assert noticed in run.stdout, run.stdout


def test_missing_tier_check_is_detected_for_each_message() -> None:
    """Each message is refused from each tier without a cell and counted; without its check it is not."""
    command = [sys.executable, "-m", "tests.wire.allowed_matrix", "--tier-checks"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert int(run.stdout.split()[-2]) > 50
