"""Settings of one store file: what an operator may move, and what is fixed because it was measured.

The options of lsm-db are constants of ``storage/store.py``: another value there is another durability, not a tuning.
"""

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

__all__ = ["StoreSettings"]


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """Limits of one store; raising the floor refuses writes earlier and leaves more room to recover in."""

    free_space_floor_bytes: NonNegativeInt = 512 * 1024 * 1024  # writes are refused below this much free disk
    free_space_floor_percent: float = Field(default=5.0, ge=0.0, le=90.0)  # of the file system; the larger floor holds
    marker_sync_commits: PositiveInt = 64  # commits between syncs of the marker; lower costs one more sync per group
    key_bytes_max: int = Field(default=1024, ge=64, le=1024)  # lsm-db turns slow above, and no key of ours comes near
    value_bytes_max: int = Field(
        default=1024 * 1024, ge=1024, le=1024 * 1024
    )  # above 2 GiB lsm-db loses values silently
