"""A wheel of this tree, a fresh environment with it and without a compiler, a folder of decoys named like our rooms."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("edge", "router", "storage", "gateways", "admin", "membership", "access", "wire", "mqtt", "conf", "jobs")
DECOY = "raise SystemExit('a folder of the working directory was taken for a room')\n"

__all__ = ["ROOMS", "Environment", "build_wheel", "names_in"]


def build_wheel(folder: Path, *, compiled: bool) -> Path:
    """Build from a copy of the sources, with this environment's setuptools; uncompiled takes seconds."""
    sources = folder / "sources"
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.c")
    for room in (*ROOMS, "stratamq"):
        shutil.copytree(ROOT / room, sources / room, ignore=left_out)
    for written in ("_lsm_vfs.c", "_sync_thread.c"):
        shutil.copy2(ROOT / "storage" / "store" / written, sources / "storage" / "store")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, sources)
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder / "dist"), str(sources)]
    environment = {**os.environ, "STRATAMQ_PURE": "" if compiled else "1"}
    subprocess.run([sys.executable, "-m", "pip", *words], env=environment, check=True, timeout=1800)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def names_in(wheel: Path) -> list[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


class Environment:
    """A virtual environment with the wheel, the packages of this one, and nothing that compiles.

    Attributes:
        folder: Where commands run: full of decoys.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
        self.bin = venv / "bin"
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
        # What we need comes from the tests' packages; path files there, such as `make setup` makes, are not read.
        (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        words = ["install", "-q", "--no-deps", "--no-index", "--prefix", str(venv), "--ignore-installed", str(wheel)]
        subprocess.run([str(self.bin / "python"), "-m", "pip", *words], check=True, timeout=300)
        self.folder = folder / "decoys"
        for room in (*ROOMS, "stratamq"):
            (self.folder / room).mkdir(parents=True)
            (self.folder / room / "__init__.py").write_text(DECOY)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("STRATAMQ_", "PYTHON"))}
        self.environment = {**clean, "CC": "/no/compiler", "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def popen(self, *words: str) -> "subprocess.Popen[str]":
        """Start the installed command among the decoys."""
        command = [str(self.bin / "stratamq"), *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)

    def run(self, *words: str, timeout_s: float = 300) -> str:
        """Run the installed command among the decoys; return what it prints."""
        return self.run_any(str(self.bin / "stratamq"), *words, timeout_s=timeout_s)

    def run_any(self, *words: str, timeout_s: float = 300) -> str:
        """Run any command among the decoys; return what it prints."""
        shown = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return shown.stdout
