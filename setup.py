"""Build the compiled modules named in conf/compiled.py, and lay out the wheel (the rest is in pyproject.toml).

The wheel has one name, ``stratamq``: the other rooms lie in ``stratamq/_rooms``, which ``stratamq/__init__.py`` puts
first on the path. In the sources, and where modules are compiled in place, rooms are top-level folders.
Modules that are compiled in place keep their assertions, so that tests, simulation and benchmarks run with them; those
of a wheel have none, unless STRATAMQ_CHECKS=1 when it is built.
"""

import os
import runpy
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOMS = ("edge", "router", "storage", "gateways", "admin", "membership", "access", "jobs", "wire", "mqtt", "conf")
INSIDE = "stratamq._rooms"
MODULES = runpy.run_path(str(Path(__file__).parent / "conf" / "compiled.py"))["COMPILED_MODULES"]

# C below a library that offers no other place for it, and a thread without the interpreter lock; in a pure build too.
C_MODULES = [
    Extension(f"storage.store.{name}", [f"storage/store/{name}.c"], extra_compile_args=["-O2", "-g1"])
    for name in ("_lsm_vfs", "_sync_thread")
]


class BuildExtensions(build_ext):
    """Compiles modules under the names of the sources, and puts them where the wheel has them."""

    in_sources = False

    def finalize_options(self) -> None:
        """Let the C compiler have every core unless the caller said how many."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def run(self) -> None:
        """Compile all; setuptools itself forgets meanwhile that it compiles in place, and copies afterwards."""
        self.in_sources = bool(self.inplace)
        if not self.in_sources and os.environ.get("STRATAMQ_CHECKS") != "1":
            for extension in self.extensions:
                extension.define_macros.append(("CYTHON_WITHOUT_ASSERTIONS", "1"))
        super().run()

    def get_ext_fullpath(self, ext_name: str) -> str:
        """Return where a module goes: below the sources when compiling in place, else below the wheel's one name."""
        path: str = super().get_ext_fullpath(ext_name)
        if self.inplace or self.in_sources:
            return path
        return str(Path(self.build_lib, *INSIDE.split("."), Path(path).relative_to(self.build_lib)))


def packages() -> dict[str, str]:
    """Return each package of the wheel with its folder in the sources."""
    own = find_packages(include=["stratamq", "stratamq.*"], exclude=[f"{INSIDE}*"])
    rooms = find_packages(include=[*ROOMS, *(f"{room}.*" for room in ROOMS)])
    return {name: name.replace(".", "/") for name in own} | {
        f"{INSIDE}.{name}": name.replace(".", "/") for name in rooms
    }


if os.environ.get("STRATAMQ_PURE") == "1" or not MODULES:
    extensions = C_MODULES
else:
    from Cython.Build import cythonize

    hot = [Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=["-O3", "-g1"]) for name in MODULES]
    directives = {"language_level": "3", "boundscheck": False, "wraparound": False, "binding": False}
    extensions = [*C_MODULES, *cythonize(hot, compiler_directives=directives, quiet=True)]

setup(
    ext_modules=extensions,
    packages=[*packages()],
    package_dir=packages(),
    exclude_package_data={"": ["*.c"]},
    cmdclass={"build_ext": BuildExtensions},
)
