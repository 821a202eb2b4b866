"""The archive for spark-submit contains every module that a job imports."""

import ast
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from jobs.bundle import bundle

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("access", "conf", "edge", "jobs", "membership", "mqtt", "router", "storage", "stratamq", "wire")
LOOK = """
import sys
sys.path[:] = [{archive!r}, *(path for path in sys.path if path not in ("", {root!r})), {packages!r}]
import jobs.audit, jobs.compact, jobs.prune
from jobs.report_page import page, page_unavailable_reason
print(jobs.audit.__file__)
if not page_unavailable_reason():
    job = dict(kind="", removed={{}}, held={{}})
    assert "no finding" in page(
        dict(exit_code=0, counts={{}}, proof=None, inputs=[], cluster_id="", job=job, partitions=[], tables={{}}), []
    )
"""


def test_archive_contains_all_imports_of_its_modules(tmp_path: Path) -> None:
    """A Spark driver has msgspec, pyspark and this archive, but no installed broker."""
    bundle(tmp_path / "jobs.zip")
    with zipfile.ZipFile(tmp_path / "jobs.zip") as archive:
        names = set(archive.namelist())
        missing = {
            f"{name}:{node.lineno} imports {node.module}"
            for name in names
            if name.endswith(".py")
            for node in ast.walk(ast.parse(archive.read(name)))
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOMS
            if f"{(node.module or '').replace('.', '/')}.py" not in names
            and f"{(node.module or '').replace('.', '/')}/__init__.py" not in names
        }
    assert not missing, "\n".join(sorted(missing))


def test_jobs_are_imported_from_the_archive_alone(tmp_path: Path) -> None:
    """A driver has no source folder on its path."""
    archive = tmp_path / "jobs.zip"
    bundle(archive)
    program = LOOK.format(root=str(ROOT), packages=sysconfig.get_path("purelib"), archive=str(archive))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(str(archive))
