"""The one name of an installation: in a wheel every other room lies below it, in ``stratamq/_rooms``.

Importing this package puts that folder first on the path, so that a folder of the working directory, or another
package, that is called like a room takes nothing's place. In the sources the rooms are the folders beside this one.
"""

import sys
from pathlib import Path

__all__ = ["ROOMS_FOLDER", "installed"]

ROOMS_FOLDER = Path(__file__).parent / "_rooms"


def installed() -> bool:
    """Return whether this is a wheel's copy, and not the sources."""
    return ROOMS_FOLDER.is_dir()


if installed() and str(ROOMS_FOLDER) not in sys.path[:1]:
    sys.path.insert(0, str(ROOMS_FOLDER))
