"""Settings of CPU scheduling between the nodes of a host (``wire/node/scheduling.py``)."""

from pydantic import BaseModel, Field

__all__ = ["NodeScheduling"]


class NodeScheduling(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: nice value of its group, slice of its main thread."""

    group_nice: int = Field(
        ge=0,
        le=19,
        description="nice value of this process's session among those of the host (Linux autogroup): processes with a "
        "higher value get less CPU under contention, and yield more often; 0: unchanged; default: edge 0, "
        "router 5, storage 5",
    )
    slice_us: int = Field(
        ge=0,
        le=100_000,
        description="scheduling slice in us that this node requests from the kernel (Linux 6.12): a short one runs "
        "sooner after others have started theirs; 0: the kernel's default; default: edge 100, router 0, "
        "storage 0",
    )
