"""The rules for the map's rebalance job: its start and its state transitions.

``rebalance_run`` proposes the job's steps at the leader.
"""

import msgspec

from router.map.commands import SetRebalance, StartRebalance
from router.placement.plan import NEXT_STATES, UNFINISHED, RebalanceJob
from wire.messages.cluster_map import ClusterMap

__all__ = ["set_rebalance", "start_rebalance"]


def start_rebalance(cluster_map: ClusterMap, job: RebalanceJob | None, command: StartRebalance) -> RebalanceJob | str:
    """Return the job of a plan for the current map epoch, or a refusal."""
    if job is not None and job.state in UNFINISHED:
        return f"rebalance {job.number} is {job.state}: wait for it, or abort it"
    if command.plan.map_epoch != cluster_map.epoch:
        at, now = command.plan.map_epoch, cluster_map.epoch
        return f"the plan is of map epoch {at}, the map is at {now}: plan again"
    number = job.number + 1 if job is not None else 1
    return RebalanceJob(number, command.plan, command.throttle_bytes_s, automatic=command.automatic)


def set_rebalance(_: ClusterMap, job: RebalanceJob | None, command: SetRebalance) -> RebalanceJob | str:
    """Return the job in its next state, or a refusal if that state does not follow the current one."""
    if job is None or job.number != command.job:
        return f"no rebalance {command.job}"
    if command.state not in NEXT_STATES.get(job.state, ()):
        return f"rebalance {job.number} is {job.state}: it cannot become {command.state}"
    return msgspec.structs.replace(job, state=command.state, detail=command.detail)
