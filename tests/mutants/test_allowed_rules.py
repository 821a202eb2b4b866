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


def test_a_tier_check_that_is_left_out_is_noticed_for_each_message() -> None:
    """NIST: protect. Each message is refused from each tier without a cell and counted; without its check it is not."""
    command = [sys.executable, "-m", "tests.wire.allowed_matrix", "--tier-checks"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert int(run.stdout.split()[-2]) > 50


def test_a_hostile_seed_notices_that_every_storage_node_may_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients get what nobody published; with the rule in place the seed passes.

    What a hostile node sends is drawn from all messages, so each new one moves the seeds that notice: one in fifteen
    does, and the search starts at one that did.
    """
    options = Options(seconds=4.0, hostile=True, faults=())
    with monkeypatch.context() as without_rule:
        without_rule.setattr("edge.node_messages.standing", lambda *_: Standing.PRIMARY)
        noticed = next((seed for seed in range(2150, 2240) if _forged(run_seed(seed, options).failures)), None)
    assert noticed is not None
    assert not run_seed(noticed, options).failures


def _forged(failures: list[str]) -> bool:
    return any("was given a forged message" in failure for failure in failures)
