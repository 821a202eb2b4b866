"""Settings of how a node shares the processor with the other nodes of its host (``wire/node/scheduling.py``)."""

from pydantic import BaseModel, Field

__all__ = ["NodeScheduling"]


class NodeScheduling(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[node]``: nice value of its group, slice of its main thread."""

    group_nice: int = Field(
        ge=0,
        le=19,
        description="nice value of this process's session among those of the host (Linux's autogroup): who "
        "has a higher one waits for a core that is wanted by both, and gives way between pieces of its work; 0: "
        "as it is; default: edge 0, router 5, storage 5",
    )
    slice_us: int = Field(
        ge=0,
        le=100_000,
        description="microseconds of the slice that this node asks of the kernel (Linux 6.12): a short one waits less "
        "for others that have begun theirs; 0: the kernel's own; default: edge 100, router 0, storage 0",
    )
