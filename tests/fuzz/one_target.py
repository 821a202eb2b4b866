"""One target in its own process: ``python -m tests.fuzz.one_target NAME --seconds S --seed N --box FILE``.

Atheris (libFuzzer) guides Python targets; other targets use seeded mutation of valid input and of the findings of
atheris. Before each execution the count and the input go into a small shared file, the *box*: the starter reads
there the number of executions, and the input that ended a process.
"""

import argparse
import importlib
import inspect
import mmap
import random
import struct
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any

from tests.edge.loop.conftest import NAMES
from tests.edge.loop.conftest import load as load_hot
from tests.fuzz.targets import TARGETS, Target

INPUT_BYTES_MAX = 4096
BOX = struct.Struct("=QI")  # executions, length of the last input; the input follows
BOX_BYTES = BOX.size + 65_536
ROUND = 50  # cases between two checks of the clock

__all__ = ["BOX", "BOX_BYTES", "Box", "load_corpus", "run_target"]


class Box:
    """Count and last input, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(BOX_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), BOX_BYTES)
        self.executions = 0

    def note(self, data: bytes) -> None:
        self.executions += 1
        kept = data[: BOX_BYTES - BOX.size]
        BOX.pack_into(self._memory, 0, self.executions, len(kept))
        self._memory[BOX.size : BOX.size + len(kept)] = kept

    @staticmethod
    def read(path: Path) -> tuple[int, bytes]:
        raw = path.read_bytes()
        executions, length = BOX.unpack_from(raw)
        return executions, raw[BOX.size : BOX.size + length]


def load_corpus(target: Target, folder: Path | None) -> tuple[bytes, ...]:
    """Return the target's own good inputs, and the found ones that increased coverage."""
    found = [] if folder is None else sorted((folder / (target.corpus_of or target.name)).glob("*"))
    return (*target.corpus, *(path.read_bytes() for path in found))


def run_target(
    target: Target,
    seed: int,
    seconds: float,
    corpus: tuple[bytes, ...] = (),
    box: Box | None = None,
    executions: int = 0,
) -> tuple[int, bytes | None]:
    """Mutate for a while, or for a number of executions; return the number of cases, and the failure."""
    rng = random.Random(f"{target.name}/{seed}")
    end = time.monotonic() + seconds
    corpus = corpus or target.corpus
    cases = 0
    while time.monotonic() < end and (not executions or cases < executions):
        for _ in range(ROUND):
            data = target.mutator(corpus, rng)
            cases += 1
            if box is not None:
                box.note(data)
            try:
                target.check(data)
            except Exception:
                traceback.print_exc(limit=-4)
                return cases, data
    return cases, None


def _functions(module: types.ModuleType | types.SimpleNamespace) -> list[types.FunctionType]:
    found = []
    for value in list(vars(module).values()):
        members = list(vars(value).values()) if inspect.isclass(value) else [value]
        for member in members:
            plain = getattr(member, "__func__", member)
            if isinstance(plain, types.FunctionType) and plain.__module__ == getattr(module, "__name__", ""):
                found.append(plain)
    return found


def _instrument(atheris: Any, target: Target) -> int:
    """Let the lines of the target's packages guide; return the number of functions."""
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if any(name == package or name.startswith(package + ".") for package in target.guides)
    ]
    if target.compiled:
        pure = load_hot("pure")
        modules = [getattr(pure, name) for name in NAMES if hasattr(pure, name)]
    functions = {id(function): function for module in modules for function in _functions(module)}
    for function in functions.values():
        atheris.instrument_func(function)
    return len(functions)


def _guided(target: Target, options: argparse.Namespace, box: Box) -> None:
    """Run under atheris; does not return."""
    atheris: Any = importlib.import_module("atheris")
    for data in target.corpus:
        target.check(data)  # triggers late imports before instrumentation
    print(f"{_instrument(atheris, target)} functions guide", flush=True)
    folder = options.corpus / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.corpus):
        (folder / f"good-{number:03d}").write_bytes(data)

    def one(data: bytes) -> None:
        box.note(data)
        target.check(data)

    arguments = [f"-max_total_time={max(1, int(options.seconds))}", f"-max_len={INPUT_BYTES_MAX}"]
    arguments += [f"-runs={options.executions}"] if options.executions else []
    arguments += [f"-seed={options.seed % 2**31 or 1}", "-print_final_stats=1", "-verbosity=0", "-timeout=30"]
    atheris.Setup([sys.argv[0], *arguments, f"-artifact_prefix={options.box.parent}/", str(folder)], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[target.name for target in TARGETS])
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--executions", type=int, default=0)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--box", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--guided", action="store_true")
    options = parser.parse_args()
    target = next(target for target in TARGETS if target.name == options.target)
    box = Box(options.box)
    if options.guided:
        _guided(target, options, box)
    corpus = load_corpus(target, options.corpus)
    return run_target(target, options.seed, options.seconds, corpus, box, options.executions)[1] is not None


if __name__ == "__main__":
    sys.exit(main())
