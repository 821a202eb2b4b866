"""A pair of balancers with keepalived's shipped file: new connections come in again soon after one is killed."""

import shutil
import subprocess
import sys

import pytest

from tests.chaos.namespaces import available

AGAIN_S = 3.0


@pytest.mark.slow
def test_other_balancer_takes_floating_address() -> None:
    """Two hosts in namespaces; the balancer that has the address is killed."""
    for program in ("keepalived", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: {program})")
    if not available():
        pytest.skip("network namespaces need root, ip and nsenter (Debian: iproute2, util-linux)")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.e2e.keepalived_pair"], capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert float(ended.stdout.split()[-1]) <= AGAIN_S
