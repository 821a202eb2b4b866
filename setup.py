"""Build the compiled modules named in conf/compiled.py (everything else is in pyproject.toml)."""

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup

MODULES = runpy.run_path(str(Path(__file__).parent / "conf" / "compiled.py"))["COMPILED_MODULES"]

# C below a library that offers no other place for it; needed in a pure build too.
C_MODULES = [Extension("storage._lsm_vfs", ["storage/_lsm_vfs.c"], extra_compile_args=["-O2", "-g1"])]

if os.environ.get("STRATAMQ_PURE") == "1" or not MODULES:
    setup(ext_modules=C_MODULES)
else:
    from Cython.Build import cythonize

    extensions = [
        Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=["-O3", "-g1"]) for name in MODULES
    ]
    directives = {"language_level": "3", "boundscheck": False, "wraparound": False, "binding": False}
    setup(ext_modules=[*C_MODULES, *cythonize(extensions, compiler_directives=directives, quiet=True)])
