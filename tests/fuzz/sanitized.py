"""The source tree for fuzzing: compiled modules with bounds checks and the address sanitizer, other files unchanged.

``build`` creates it below ``build/fuzz`` and compiles only changed files. Compiled files are copied, all others are
links to the working tree. As a program it prints the environment that a process needs there. Needs gcc.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from conf.compiled import COMPILED_MODULES

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "fuzz" / "tree"
FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address")
# Views and lists are checked by Cython, memory behind pointers by the sanitizer.
EXTENSIONS = ("_lsm_vfs.", "_sync_thread.")  # written in C, not by Cython: taken as setup.py made them
DIRECTIVES = {"language_level": "3", "boundscheck": True, "wraparound": False, "binding": False}

__all__ = ["TREE", "build", "can_build", "environment", "setup_text"]

_SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup
extensions = [Extension(n, [n.replace(".", "/") + ".py"], extra_compile_args={flags!r}, extra_link_args={flags!r})
              for n in {names!r}]
setup(name="fuzzed", packages=[], ext_modules=cythonize(extensions, compiler_directives={directives!r}, quiet=True))
"""


def can_build() -> bool:
    """Return whether there is a compiler that has the sanitizer."""
    return shutil.which("gcc") is not None and Path(_library()).exists()


def build(names: tuple[str, ...] = COMPILED_MODULES) -> Path:
    """Bring the tree up to date; return it.

    Raises:
        subprocess.CalledProcessError: A module does not compile.
    """
    packages = sorted({name.partition(".")[0] for name in names})
    TREE.mkdir(parents=True, exist_ok=True)
    for entry in ROOT.iterdir():
        if entry.is_dir() and entry.name not in {*packages, "build"} and not entry.name.startswith("."):
            _link(TREE / entry.name, entry)
    for package in packages:
        _copy_sources(ROOT / package, TREE / package)
    setup = setup_text(names)
    stamp, print_of_sources = TREE / "compiled.stamp", _digest(packages, setup)
    if not stamp.exists() or stamp.read_text() != print_of_sources:
        (TREE / "setup.py").write_text(setup)
        subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=TREE, check=True)
        stamp.write_text(print_of_sources)
    return TREE


def setup_text(names: tuple[str, ...]) -> str:
    """Return the setup.py that compiles modules with bounds checks and the address sanitizer."""
    return _SETUP.format(flags=list(FLAGS), names=list(names), directives=DIRECTIVES)


def environment(tree: Path = TREE) -> dict[str, str]:
    """Return the environment of a process that is to import the tree: the sanitizer must be loaded before Python."""
    return {
        **os.environ,
        "PYTHONPATH": str(tree),
        "LD_PRELOAD": _library(),
        # Small objects come from malloc, so that the sanitizer detects reads past a packet's bytes. Python never frees
        # its own constants, so leak detection is off.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0:quarantine_size_mb=16",
    }


def _library() -> str:
    if shutil.which("gcc") is None:
        return ""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _link(at: Path, target: Path) -> None:
    if at.is_symlink() and at.readlink() == target:
        return
    at.unlink(missing_ok=True)
    at.symlink_to(target)


def _copy_sources(source: Path, target: Path) -> None:
    """Copy changed files and keep times, by which Cython decides about compilation."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir() and path.name != "__pycache__":
            copy.mkdir(parents=True, exist_ok=True)
        elif path.suffix in {".py", ".pxd", ".toml", ".html", ".css", ".js", ".typed"} or path.name.startswith(
            EXTENSIONS
        ):
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists() or copy.read_bytes() != path.read_bytes():
                shutil.copy2(path, copy)


def _digest(packages: list[str], setup: str) -> str:
    digest = hashlib.sha256(setup.encode())
    for package in packages:
        for path in sorted((TREE / package).rglob("*")):
            if path.suffix in {".py", ".pxd"}:
                digest.update(str(path.relative_to(TREE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    build()
    print(" ".join(f"{name}={value}" for name, value in environment().items() if os.environ.get(name) != value))
