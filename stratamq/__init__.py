"""The installed package: in a wheel all other packages are below it, in ``stratamq/_rooms``.

Importing it puts that folder first on the path, so that no other package of the same name is imported. In a source
checkout the packages are the folders beside this one.
"""

import sys
from pathlib import Path

__all__ = ["ROOMS_FOLDER", "installed"]

ROOMS_FOLDER = Path(__file__).parent / "_rooms"


def installed() -> bool:
    """Return whether this is an installed wheel and not a source checkout."""
    return ROOMS_FOLDER.is_dir()


if installed() and str(ROOMS_FOLDER) not in sys.path[:1]:
    sys.path.insert(0, str(ROOMS_FOLDER))
