"""A rule of ``wire/links/allowed.py`` that is taken away is noticed: by the matrix, or by a hostile seed."""

import subprocess
import sys

import pytest

from tests.simulation.simulation import Options, run_seed
from wire.links.allowed import Standing


@pytest.mark.parametrize(
    ("rule", "noticed"),
    [
        ("PUBLISH_ACK", "PUBLISH_ACK of a storage changed a edge"),
        ("own incarnation", "Heartbeat of a edge changed a router"),
    ],
)
def test_the_matrix_notices_a_missing_rule(rule: str, noticed: str) -> None:
    command = [sys.executable, "-m", "tests.wire.allowed_matrix", "--without", rule]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 1, run.stderr[-2000:]
    assert noticed in run.stdout, run.stdout


def test_a_hostile_seed_notices_that_every_storage_node_may_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients get what nobody published; with the rule in place the seed passes."""
    options = Options(seconds=4.0, hostile=True, faults=())
    assert not run_seed(2037, options).failures
    monkeypatch.setattr("edge.node_messages.standing", lambda *_: Standing.PRIMARY)
    failures = run_seed(2037, options).failures
    assert any("was given a forged message" in failure for failure in failures), failures
