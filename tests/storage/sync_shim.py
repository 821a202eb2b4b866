"""The interposed sync calls (``shim/sync_shim.c``), compiled."""

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["compiled_shim"]


def compiled_shim(folder: Path) -> Path:
    """Compile it into a folder; skip the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: power loss is not simulated")
    library = folder / "sync_shim.so"
    source = Path(__file__).parent / "shim" / "sync_shim.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library
