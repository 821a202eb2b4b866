"""Error message for an import failure that another package of the same name causes.

Imported before all other modules, so it uses only the standard library.
"""

import importlib.machinery
import sys
from pathlib import Path

__all__ = ["explain_conflict"]

OURS = Path(__file__).resolve().parent.parent


def explain_conflict(error: ImportError) -> str:
    """Return the cause in one line.

    Raises:
        ImportError: The same error, if no other package precedes one of ours.
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
        f"another package named {room} precedes StrataMQ's on the import path: {found}: remove its folder from"
        " PYTHONPATH and from the working directory, or run StrataMQ in its own environment"
    )
