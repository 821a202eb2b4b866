"""Settings of one store file: those of operators, and constants with measured values.

The options of lsm-db are constants of ``storage/store/lsm_file.py``: other values change the durability, not only the
speed.
"""

from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from conf.storage_settings import StorageSettings

__all__ = ["GroupCommitSettings", "StoreSettings"]

DEFAULT = StorageSettings()  # one default per setting, and its description: conf/storage_settings.py


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """Limits of one store; a higher floor refuses writes earlier and leaves more space for recovery."""

    free_space_floor_bytes: NonNegativeInt = DEFAULT.free_space_floor_bytes
    free_space_floor_percent: float = DEFAULT.free_space_floor_percent
    marker_sync_commits: PositiveInt = 64  # commits between syncs of the marker; lower costs one more sync per group
    key_bytes_max: int = Field(default=1024, ge=64, le=1024)  # lsm-db gets slow above, and no key of ours comes near
    # Above 2 GiB lsm-db loses values silently
    value_bytes_max: int = Field(default=1024 * 1024, ge=1024, le=1024 * 1024)


class GroupCommitSettings(BaseModel, frozen=True, extra="forbid"):
    """When writes of several operations become one transaction and one sync."""

    delay_s: NonNegativeFloat = DEFAULT.group_commit_ms / 1000  # between sync starts under load
    batch_ops: PositiveInt = 512  # rows at which a batch is committed without delay
    batch_bytes: PositiveInt = 256 * 1024  # likewise
    batch_ops_max: PositiveInt = 8192  # rows in one transaction after a backlog on a slow disk
    batch_bytes_max: PositiveInt = 4 * 1024 * 1024  # likewise
    small_batch_ops: PositiveInt = 32  # average batch size below which the next one is committed without delay
    backlog_bytes_max: PositiveInt = 32 * 1024 * 1024  # submitted, not committed: above it readers must stop reading
    marker_idle_s: PositiveFloat = 0.1  # idle time after which the marker is synced too
