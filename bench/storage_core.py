"""Cost of the storage core per durable QoS 1 message, without disks and links: 100 sessions, one publisher edge.

One round = a PUBLISH frame with a message for each session, the sync, the pushes, a PUSH_ACK frame for all of them.
Prints microseconds per message, and with --profile where they go.
Usage: python bench/storage_core.py [--profile] [--partitions N]
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from storage.core import FrameArrived, NodeTick
from storage.ready import BatchSynced
from tests.storage.storage_cluster import Cluster
from wire.messages.batches import PublishMessage, PushAck, decode_pushes, encode_message, encode_push_ack
from wire.messages.frames import FrameKind

SESSIONS = 100
ROUNDS = 200


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--partitions", type=int, default=256)
    arguments = parser.parse_args()
    cluster = Cluster(partitions=arguments.partitions)
    edge, node = cluster.edges["e1"], cluster.nodes["s1"]
    clients = [edge.open(f"client {number}", settle=False) for number in range(SESSIONS)]
    cluster.settle()
    for number, client in enumerate(clients):
        edge.subscribe(client, f"bench/{number}", settle=False)
    cluster.settle()
    cluster.run(0.5)
    core, store = node.core, node.store
    tag = 0
    clock = cluster.now

    def one_round() -> float:
        nonlocal tag, clock
        records = []
        for number, client in enumerate(clients):
            tag += 1
            records.append(
                encode_message(
                    PublishMessage(
                        tag, f"bench/{number}".encode(), b"x" * 64, 1, partitions=(client.session >> 48,), epochs=(1,)
                    )
                )
            )
        payload = b"".join(records)
        clock += 0.0001
        begun = time.process_time()
        ready = core.handle(clock, [FrameArrived(edge.key, FrameKind.PUBLISH, payload)])
        spent = time.process_time() - begun
        store.write(ready.writes)
        begun = time.process_time()
        ready = core.handle(clock, [BatchSynced(ready.batch)])
        spent += time.process_time() - begun
        acks = []
        for _, kind, data in ready.sends:
            if kind == FrameKind.PUSH:
                acks += [
                    encode_push_ack(
                        PushAck(push.session, push.owner_epoch, push.partition_epoch, push.session_seq, 4, 0)
                    )
                    for push in decode_pushes(data)
                ]
        assert len(acks) == SESSIONS
        begun = time.process_time()
        ready = core.handle(clock, [FrameArrived(edge.key, FrameKind.PUSH_ACK, b"".join(acks))])
        spent += time.process_time() - begun
        if ready.batch:
            store.write(ready.writes)
            core.handle(clock, [BatchSynced(ready.batch)])
        return spent

    for _ in range(20):
        one_round()
    profile = cProfile.Profile()
    if arguments.profile:
        profile.enable()
    figures = [one_round() / SESSIONS * 1e6 for _ in range(ROUNDS)]
    profile.disable()
    begun = time.process_time()
    for _ in range(200):
        core.handle(clock, [NodeTick()])
    idle = (time.process_time() - begun) / 200 * 1e6
    median = statistics.median(figures)
    print(f"{median:.1f} us per message, {idle:.0f} us per idle round, {arguments.partitions} partitions")
    if arguments.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    main()
