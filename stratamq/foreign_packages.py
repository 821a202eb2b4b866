"""Another package under the name of one of our rooms, first on the path: why nothing of ours can be imported.

Read before anything of ours is: it imports the standard library alone.
"""

import importlib.machinery
import sys
from pathlib import Path

__all__ = ["told_of"]

OURS = Path(__file__).resolve().parent.parent


def told_of(error: ImportError) -> str:
    """Return what is wrong, in one line.

    Raises:
        ImportError: The same one, where no other package stands before a room of ours.
    """
    room = (error.name or "").partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(room, sys.path) if room else None
    if spec is None or not (OURS / room).is_dir():
        raise error
    places = [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    found = Path(places[0]).resolve() if places else OURS
    if found.is_relative_to(OURS / room):
        raise error
    return (
        f"another package named {room} stands on the path before StrataMQ's: {found}: take its folder off PYTHONPATH"
        " and of the working directory, or run StrataMQ in an environment of its own"
    )
