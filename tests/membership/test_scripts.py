"""Behaviour of the papers and former bugs, as text scripts."""

from pathlib import Path

import pytest

from tests.membership.script import Script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("seed", (1, 2))
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, seed: int) -> None:
    """The first lines of each script describe its behaviour."""
    Script(path.read_text(), seed).run()
