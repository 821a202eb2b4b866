"""One seed of the whole cluster: constants, work, faults, the quiet phase, and the checks.

*Safety* mode injects faults throughout and checks the clients' histories at the end. *Liveness* mode injects faults for
a while, then leaves one permanent fault that the cluster must tolerate, and requires that every client is served.
"""

import random
import time
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from edge.loop.options import HotLimits
from edge.node.limits import EdgeLimits
from storage.state.settings import PartitionSettings
from stratamq.history.operations import Kind
from tests.chaos.chaos_result import within_lease
from tests.simulation.cluster import Cluster, Knobs
from tests.simulation.edge_process import EdgeProcess
from tests.simulation.faults import (
    Fault,
    draw_drains,
    draw_faults,
    draw_freezes,
    draw_hardware_faults,
    draw_stops,
    heal,
    inflict,
)
from tests.simulation.policy_work import PolicyWork
from tests.simulation.query_work import QueryWork
from tests.simulation.router_process import RaftKnobs, RouterProcess
from tests.simulation.scheduler import REAL_TIME_MAX_S, Scheduler
from tests.simulation.slow_work import SlowWork
from tests.simulation.storage_process import DiskKnobs, StorageProcess
from tests.simulation.unregistered_process import UnregisteredProcess
from tests.simulation.workload import WORKS, Workload
from wire.messages.ranges import MAP_PAGE_BYTES

__all__ = ["FLAGS", "Mode", "Options", "Result", "draw_knobs", "run_seed"]

Mode = Literal["safety", "liveness"]
QUIET_MAX_S = 60.0  # until every client must be served again, after the last fault
SAID_MIN = 20  # forged messages of which some must have been refused
# Edges and queues with small bounds drop live messages; slow clients record messages after their UNSUBACK.
NOT_OF_SLOW = ("lost", "subscribe_barrier", "unsubscribe_barrier")
IDLE_S = 3.0  # idle time before the final checks


@dataclass(frozen=True)
class Options:
    """Command-line options, which replay a failing seed."""

    mode: Mode = "safety"
    seconds: float = 20.0
    faults: tuple[Fault, ...] | None = None  # None: drawn
    works: tuple[str, ...] | None = None
    routers: int = 0  # 0: drawn
    hostile: bool = False  # also a node with messages outside its permissions, and nodes with only a certificate
    heedless: bool = False  # also clients that send above Receive Maximum
    slow: bool = False  # only clients that acknowledge slowly with small bounds, and retained messages for them
    hardware: bool = False  # also full disks, flipped bits and clocks that drift
    stops: bool = False  # also SIGTERM for nodes and tiers
    drains: bool = False  # also drains of edges
    fleet: bool = False  # also many clients with wills that die at the same time, and short memories of wills
    freezes: bool = False  # also SIGSTOP within an iteration, and clients that each wait at one edge
    looks: bool = False  # also an operator that lists, explains and traces
    policy: bool = False  # also users of the cluster, and operators that revoke their rights
    log: bool = False
    real_time_max_s: float = REAL_TIME_MAX_S


FLAGS = tuple(option.name for option in fields(Options) if option.type is bool and option.name != "log")


@dataclass
class Result:
    """Result of one seed."""

    seed: int
    failures: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    knobs: Knobs = field(default_factory=Knobs)
    works: tuple[str, ...] = ()
    seconds: float = 0.0  # simulated
    real_s: float = 0.0
    events: int = 0
    acknowledged: int = 0
    forged: int = 0  # frames that hostile nodes sent
    refused: int = 0  # messages and links that nodes counted as refused
    verbs: int = 0  # settled policy commands
    slow_reads: int = 0  # of slow clients, without an interrupting fault
    denied: int = 0  # packets checked while a user had lost a right
    asked: dict[str, int] = field(default_factory=dict)  # number of checked answers to the operator, by kind
    checked: dict[str, int] = field(default_factory=dict)
    digest: int = 0
    log: list[str] = field(default_factory=list)
    history: bytes = b""


def draw_knobs(seed: int) -> Knobs:
    """Draw the constants of one seed."""
    rng = random.Random(f"knobs/{seed}")
    storages = rng.choice((1, 2, 3, 3, 3))
    replicas = rng.choice([count for count in (1, 2, 3) if count <= storages])
    delay_s = rng.choice((0.0002, 0.001, 0.005, 0.02))
    lease_s = rng.choice((1.0, 2.0, 2.0))
    return Knobs(
        routers=rng.choice((1, 3, 3)),
        storages=storages,
        edges=rng.choice((2, 2, 3)),
        replicas=replicas,
        min_in_sync=min(replicas, rng.choice((1, 2))),
        partitions=rng.choice((1, 2, 4, 8)),
        shards=rng.choice((1, 2, 5)),
        lease_s=lease_s,
        delay_s=delay_s,
        jitter_s=delay_s * rng.choice((0.1, 1.0)),
        split_chance=rng.choice((0.0, 0.0, 0.05, 0.5)),
        turn_s=rng.choice((0.00005, 0.0005, 0.003)),
        cached_topics_max=rng.choice((3, 1_000_000)),
        raft=RaftKnobs(
            election_timeout_s=max(0.3, delay_s * 20),
            heartbeat_s=max(0.06, delay_s * 4),
            entries_per_append=rng.choice((1, 2, 512)),
            snapshot_every=rng.choice((5, 50, 10_000)),
            sync_s=rng.choice((0.0005, 0.005)),
        ),
        disk=DiskKnobs(
            sync_s=rng.choice((0.0005, 0.002, 0.01)),
            delay_s=rng.choice((0.0005, 0.002, 0.01)),
            batch_ops=rng.choice((1, 8, 512)),
            small_batch_ops=rng.choice((1, 16)),
        ),
        partition=PartitionSettings(
            outbound_window_max=rng.choice((1, 4, 64)),
            inbound_unreleased_max=rng.choice((64, 1_024)),
            acks_per_row=rng.choice((1, 4, 64)),
            log_operations_max=rng.choice((20, 200, 10_000)),
            inline_bytes_max=rng.choice((8, 256)),
        ),
        edge=EdgeLimits(sys_interval_s=0, claim_gap_s=0.003, receive_maximum=rng.choice((1, 5, 20))),
        hot=HotLimits(
            routes_max=rng.choice((2, 16, 65_536)),
            outbound_window_max=rng.choice((1, 4, 64)),
            # more than a seed sends: an edge counts dropped messages, but the history cannot name them
            pending_messages_max=1_000_000,
            pending_bytes_max=1 << 30,
        ),
        map_page_bytes=rng.choice((150, 600, MAP_PAGE_BYTES)),
    )


def _small_bounds(seed: int, knobs: Knobs) -> Knobs:
    """Return constants with small bounds, under which unthrottled messages are dropped."""
    rng = random.Random(f"slow/{seed}")
    hot = replace(
        knobs.hot,
        outbound_window_max=rng.choice((1, 4, 64)),
        pending_messages_max=rng.choice((0, 1, 10)),
        pending_bytes_max=rng.choice((2_000, 1 << 20)),
        output_high_bytes=rng.choice((2_000, 1 << 20)),
        output_low_bytes=1_000,
    )
    partition = replace(knobs.partition, queue_messages_max=rng.choice((4, 20, 10_000)))
    return replace(knobs, hot=hot, partition=partition)


def run_seed(seed: int, options: Options | None = None) -> Result:
    """Run a seed to its end; the result contains the failures."""
    options = options or Options()
    result = Result(seed, knobs=draw_knobs(seed))
    if options.routers:
        result.knobs = replace(result.knobs, routers=options.routers)
    if options.policy:
        fence_close_s = random.Random(f"fence/{seed}").choice((1.0, 3.0, 10.0))
        edge = replace(result.knobs.edge, fence_close_s=fence_close_s)
        result.knobs = replace(result.knobs, users=True, edge=edge)
    if options.fleet:
        result.knobs = _with_short_memories(seed, result.knobs)
    if options.slow:
        result.knobs = _small_bounds(seed, result.knobs)
    started = time.monotonic()
    scheduler = Scheduler(real_time_max_s=options.real_time_max_s)
    if options.log:
        scheduler.log = result.log
    cluster = Cluster(seed, result.knobs, scheduler)
    try:
        _run(cluster, options, result)
    except Exception as error:
        where = _where(error)
        result.failures.append(f"{type(error).__name__}: {error} ({where})")
    result.seconds = scheduler.now - 1000.0
    result.real_s = time.monotonic() - started
    result.events = scheduler.events
    result.digest = scheduler.digest
    result.history = cluster.history()
    return result


def _with_short_memories(seed: int, knobs: Knobs) -> Knobs:
    window = random.Random(f"fleet/{seed}").choice((1, 2, 4, 16))
    hot = replace(knobs.hot, will_window=window)
    return replace(knobs, hot=hot, partition=replace(knobs.partition, will_window=window))


def _where(error: BaseException) -> str:
    traceback = error.__traceback__
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " < ".join(frames[:-4:-1])


def _run(cluster: Cluster, options: Options, result: Result) -> None:
    rng = cluster.rng("plan")
    if options.hostile:
        cluster.add_hostile_router()
    cluster.start_all()
    works = options.works or tuple(work for work in WORKS if rng.random() < 0.5)
    if options.slow:
        works = ()  # under such bounds edges drop messages, so a repeat may follow later messages: R6 cannot hold
    else:
        if not options.works and not {"queue", "routes"} & set(works):
            works = ("queue", *works)  # a seed without accepted messages to deliver checks little
        if options.heedless:
            works = (*works, "backlog")
        if options.freezes:
            works = (*works, "pinned")
        if options.fleet:
            works = (*works, "fleet")
    result.works = works
    workload = Workload(cluster, works, clients=rng.choice((4, 8, 12)), pace_s=rng.choice((0.02, 0.1, 0.3)))
    policy = PolicyWork(cluster) if options.policy else None
    looks = QueryWork(cluster) if options.looks else None
    slow = SlowWork(cluster) if options.slow else None
    cluster.run(1.0)
    drawn = draw_faults(rng, cluster, options.seconds - 1.0)
    result.faults = drawn if options.faults is None else list(options.faults)
    if options.hardware:
        hardware = cluster.rng("hardware")
        drift = hardware.choice((0.0, 0.0001, 0.01))
        for node in cluster.nodes.values():
            node.drift(1.0 + hardware.uniform(-drift, drift))
        if options.faults is None:
            result.faults += draw_hardware_faults(hardware, cluster, options.seconds - 1.0)
    if options.stops and options.faults is None:
        result.faults += draw_stops(cluster.rng("stops"), cluster, options.seconds - 1.0)
    if options.drains and options.faults is None:
        result.faults += draw_drains(cluster.rng("drains"), cluster, options.seconds - 1.0)
    if options.freezes and options.faults is None:
        result.faults += draw_freezes(cluster.rng("freezes"), cluster, options.seconds - 1.0)
    inflict(cluster, result.faults, cluster.scheduler.now)
    if options.hostile:
        cluster.start_hostile()
    cluster.run(options.seconds)
    if cluster.hostile_watch is not None and cluster.hostile_watch.violations:
        _end_hostile(cluster, result)
        return
    _end_hostile_member(cluster)
    permanent = _calm(cluster, options.mode, rng)
    cluster.mark(Kind.QUIET)
    workload.finish()
    if policy is not None:
        policy.finish()
    if looks is not None:
        looks.finish()
    if slow is not None:
        slow.finish()
        until = cluster.scheduler.now + 3 * QUIET_MAX_S
        while not slow.settled and cluster.scheduler.now < until:
            cluster.run(0.1)
        result.failures += (slow.failures + slow.unfinished)[:10]
        result.slow_reads = slow.reads
    until = cluster.scheduler.now + QUIET_MAX_S
    while not (workload.settled() and (policy is None or policy.settled())) and cluster.scheduler.now < until:
        cluster.run(0.1)
    if not workload.settled():
        result.failures.append(f"not served {QUIET_MAX_S} s after the last fault {permanent}: {workload.unsettled()}")
    if policy is not None and not policy.settled():
        result.failures.append(f"not served {QUIET_MAX_S} s after the last fault {permanent}: {policy.unsettled()}")
    _end_hostile(cluster, result)
    received = -1
    while received != (now := sum(len(client.received) for client in cluster.clients.values())):
        received = now  # queues drain as fast as windows of one allow
        cluster.run(IDLE_S)
    cluster.run(IDLE_S + 2 * cluster.knobs.lease_s + (25.0 if {"wills", "fleet"} & set(works) else 0.0))
    if looks is not None:
        _look_at_rest(cluster, looks, result)
    programs = workload.read_final_state()
    until = cluster.scheduler.now + 15.0
    while any(not program.done for program in programs) and cluster.scheduler.now < until:
        cluster.run(0.1)
    cluster.run(1.0)
    if policy is not None:
        result.failures += policy.judge()
        result.verbs, result.denied = policy.verbs, policy.watch.checked
    _judge(cluster, result, slow=options.slow)


def _look_at_rest(cluster: Cluster, looks: QueryWork, result: Result) -> None:
    looks.ask_at_rest()
    cluster.until(lambda: looks.done, 120.0)
    result.failures += looks.failures[:10]
    result.asked = {"lists": looks.lists, "stories": looks.stories, "events of traces": looks.events}


def _end_hostile_member(cluster: Cluster) -> None:
    """End the hostile node that may be a member; others stay while all clients must be served."""
    for node in cluster.hostile:
        if isinstance(node, UnregisteredProcess):
            node.may_register = False
        else:
            node.kill()


def _end_hostile(cluster: Cluster, result: Result) -> None:
    if cluster.hostile_watch is None:
        return
    for node in cluster.hostile:
        node.kill()
    cluster.hostile_watch.end()
    result.forged = sum(node.frames_sent for node in cluster.hostile)
    result.refused = cluster.hostile_watch.refused
    result.failures += cluster.hostile_watch.violations
    if result.forged >= SAID_MIN and not result.refused:
        result.failures.append(f"none of {result.forged} forged messages is counted as refused")


def _calm(cluster: Cluster, mode: Mode, rng: random.Random) -> str:
    """End the faults; in liveness mode leave a tolerable one."""
    heal(cluster)
    if mode == "safety":
        return ""
    knobs = cluster.knobs
    cluster.run(5.0)  # replicas get in sync first: a loss with one of two is outside liveness
    choices = []
    if knobs.routers >= 3:
        choices += [f"r{number}" for number in range(1, knobs.routers + 1)]
    if knobs.replicas >= 2 and knobs.replicas > knobs.min_in_sync and _all_in_sync(cluster):
        choices += [f"s{number}" for number in range(1, knobs.storages + 1)]
    if not choices:
        return ""
    name = rng.choice(choices)
    cluster.mark(Kind.KILL, name, "for ever")
    cluster.kill(name, power=rng.random() < 0.5)
    return f"({name} is dead for ever)"


def _all_in_sync(cluster: Cluster) -> bool:
    maps = [node.core.machine.map for node in cluster.nodes.values() if isinstance(node, RouterProcess) and node.up]
    newest = max(maps, key=lambda cluster_map: cluster_map.epoch)
    return all(len(newest.live_in_sync(placement)) == newest.replicas for placement in newest.partitions)


def _judge(cluster: Cluster, result: Result, *, slow: bool = False) -> None:
    verdict = cluster.judge()
    result.checked = {name: report.checked for name, report in verdict.reports.items()}
    result.acknowledged = result.checked.get("lost", 0)
    for finding in verdict.findings:
        if slow and finding.checker in NOT_OF_SLOW:
            continue
        if within_lease(finding, cluster.knobs.lease_s):
            continue  # its edge was cut off or slow, and did not answer in time
        kind = f"{finding.checker} ({finding.promise})"
        if len(result.failures) < 20:
            result.failures.append(f"{kind}: {finding.message}")
    result.failures.extend(_broken_invariants(cluster))
    if cluster.hostile_watch is not None:
        result.failures.extend(f"{name} was given a forged message" for name in cluster.hostile_watch.deceived())


def _broken_invariants(cluster: Cluster) -> list[str]:
    """Return violations of invariants at rest, independent of the clients' view."""
    broken = []
    maps = {
        name: node.core.machine.map
        for name, node in cluster.nodes.items()
        if isinstance(node, RouterProcess) and node.up
    }
    epochs = {cluster_map.epoch for cluster_map in maps.values()}
    if len(epochs) > 1:
        broken.append(f"routers at rest have maps of epochs {sorted(epochs)}")
    for name, node in cluster.nodes.items():
        if isinstance(node, EdgeProcess) and node.up:
            left = node.core.hot.counters()["outbox_bytes"]
            if left:
                broken.append(f"{name} still keeps {left} bytes that storage has not acknowledged")
        elif isinstance(node, StorageProcess) and node.up:
            if not node.core.serving:
                broken.append(f"{name} does not serve at rest")
            broken.extend(_unfinished(name, node))
    return broken


def _unfinished(name: str, node: StorageProcess) -> list[str]:
    """Return the undelivered or unfinished messages of connected clients; many QoS 2 exchanges end with PUBREL only."""
    return [
        f"{name} still has {session.queued} messages for {session.client_id}, which is connected to {session.edge}"
        for hosted in node.core.partitions.values()
        for session in hosted.partition.sessions.values()
        if session.edge and session.queued
    ]


def shorter(options: Options, faults: list[Fault]) -> Options:
    """Return the options that replay a seed with these faults."""
    return replace(options, faults=tuple(faults))
