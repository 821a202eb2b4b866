"""Build the archive for spark-submit: python -m jobs.bundle stratamq-jobs.zip.

Only the driver runs Python, with these packages; executors need no Python package. The driver needs msgspec, and jinja2
for the page of an audit.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

__all__ = ["bundle", "main"]

# Modules outside this package that the jobs import, directly or not; tests/jobs/test_bundle.py detects a missing one.
_MODULES = (
    "wire/__init__.py",
    "wire/decoding.py",
    *(f"wire/sstable/{name}.py" for name in ("__init__", "ledger", "manifest", "run_reader", "schema", "writer")),
    *(f"conf/{name}.py" for name in ("__init__", "events", "synced_folder", "urls")),
)


def bundle(path: Path) -> None:
    """Write the archive."""
    root = Path(__file__).parent.parent
    own = [file for pattern in ("*.py", "*.html") for file in sorted((root / "jobs").glob(pattern))]
    files = own + [root / name for name in _MODULES]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(root).as_posix())


def main(argv: list[str]) -> int:
    """Run the command line."""
    if len(argv) != 1:
        print("usage: python -m jobs.bundle FILE.zip", file=sys.stderr)
        return 2
    bundle(Path(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
