"""Settings of the routing tier: number of partitions and shards, leases, Raft.

``partitions`` and ``shards`` are fixed when a cluster is bootstrapped; afterwards the stored map applies. Sources:
docs/protocol.md section 2 (map and leases); the Raft paper, section 9.3, for the relation of timeouts.
"""

from pydantic import BaseModel, Field, field_validator, model_validator

from conf.node_settings import split_list

__all__ = ["RouterSettings"]


class RouterSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``router``."""

    members: tuple[str, ...] = Field(
        default=(),
        description=(
            "id@host:port of the 1, 3 or 5 routers of a new cluster, including this one; empty: only this one"
        ),
    )
    join: bool = Field(
        default=False, description="do not bootstrap: wait to be added to a running cluster as a learner"
    )
    partitions: int = Field(
        default=256,
        ge=1,
        le=8_192,
        description="storage partitions, fixed at bootstrap; more balance better; above the maximum, the death of a "
        "storage node kept other nodes on a host of 2 cores busy for longer than a lease of 2 s",
    )
    shards: int = Field(default=64, ge=1, le=4096, description="route shards, fixed at bootstrap")
    replicas: int = Field(
        default=3,
        ge=1,
        le=7,
        description="copies of each partition; fewer storage nodes hold fewer, which is logged",
    )
    min_in_sync: int = Field(
        default=2,
        ge=1,
        le=7,
        description="copies that must be synced before an acknowledgement; below it the partition stops",
    )
    lease_s: float = Field(
        default=2.0,
        ge=0.5,
        le=60,
        description="s; a dead node is replaced after about this; lower fails over sooner, on less evidence",
    )
    lease_margin_s: float = Field(
        default=0.1, ge=0.0, le=10, description="s the routers wait after a lease for clock differences"
    )
    election_timeout_s: float = Field(
        default=0.3,
        ge=0.05,
        le=30,
        description="s without a leader before an election, randomized between 1 and 2 times this",
    )
    heartbeat_s: float = Field(
        default=0.06, ge=0.005, le=10, description="s between the leader's messages; well below the election timeout"
    )
    snapshot_every_entries: int = Field(
        default=10_000, ge=100, le=10_000_000, description="log entries between snapshots; more makes a longer restart"
    )
    trailing_entries: int = Field(
        default=5_000,
        ge=0,
        le=10_000_000,
        description="entries kept after a snapshot for routers that lag slightly",
    )
    cached_topics_max: int = Field(
        default=1_000_000,
        ge=1000,
        le=100_000_000,
        description="cached topics of edges, stored for invalidation; the oldest are removed first, those answered "
        "within the last second stay (up to 10 000 more)",
    )

    @field_validator("members", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_list(value)

    @model_validator(mode="after")
    def _consistent(self) -> "RouterSettings":
        if self.min_in_sync > self.replicas:
            raise ValueError("min_in_sync cannot be more than replicas")
        if self.heartbeat_s * 2 > self.election_timeout_s:
            raise ValueError("heartbeat_s must be at most half of election_timeout_s")
        if len(self.members) not in (0, 1, 3, 5):
            raise ValueError("members: 1, 3 or 5 routers")
        for member in self.members:
            name, at, address = member.partition("@")
            if not (name and at and address.rpartition(":")[2].isdecimal()):
                raise ValueError(f"members: {member!r} is not id@host:port")
        return self
