"""Every script in ``scripts/``: the figures of the Raft paper and known bugs of other implementations."""

import os
from pathlib import Path

import pytest

from tests.router.raft.script_runner import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    """The actual states equal the written ones."""
    differences = run_script(path, rewrite=os.environ.get("RAFT_SCRIPTS_REWRITE") == "1")
    assert not differences, "\n".join(differences)
