"""Durable messages at a fixed rate: the cost at all nodes when a message is nearly alone in its commit, and its
latency.

Concurrent load hides the cost of a commit; most installations publish a few hundred messages a second. Each row begins
with the idle cost of a fresh cluster, and is compared with the disk's own sync time,
measured before and after it.
"""

import argparse
import time

from bench.durable_figures import Costs, durable_cluster, mqload, raw_syncs

__all__ = ["RATES", "paced"]

RATES = (100, 1_000, 5_000)  # messages per second of all publishers together
SETTLE_S = 8.0  # until the start-up work and threads of the nodes have ended
IDLE_S = 5.0
PUBLISHERS = 100


def paced(options: argparse.Namespace, copies: int) -> int:
    """Publish at each rate to subscribers that are there; return how many runs broke a promise."""
    failed = 0
    with durable_cluster("--storages", str(copies)) as cluster:
        port, pairs = cluster.port(0, "plain"), ("-P", str(PUBLISHERS), "--persistent")
        mqload(options, port, *pairs, "-w", "20", "-n", "20")  # routes and caches
        time.sleep(SETTLE_S)
        costs = Costs(cluster)
        time.sleep(IDLE_S)
        idle_us_per_s = costs.cpu_us(IDLE_S)
        for rate in options.rates:
            each = str(rate / PUBLISHERS)
            mqload(options, port, *pairs, "-r", each, "-d", "1")
            raw_before, costs = raw_syncs(), Costs(cluster)
            report, broken = mqload(options, port, *pairs, "-r", each, "-d", str(options.paced_s))
            failed += broken
            if not report:
                continue
            count, ack, late = report["received"], report["ack_latency_us"], report["generator_lateness_us"]
            total, figures, raw_after = costs.cpu_us(count), costs.figures(count), raw_syncs()
            options.table.add(
                f"paced {rate}/s, {copies} {'copy' if copies == 1 else 'copies'}",
                **{"msg/s": report["receive_msg_per_s"]},
                **{"PUBACK P50 ms": ack["p50"] / 1e3, "PUBACK P99 ms": ack["p99"] / 1e3},
                **{"fdatasync alone, P50 ms": (raw_before[0] + raw_after[0]) / 2, "all us": total},
                **{"of that idle us": idle_us_per_s / rate, **figures},
            )
            tiers = ", ".join(f"{name[:-3]} {value:.0f}" for name, value in figures.items() if name.endswith(" us"))
            print(
                f"paced {rate}/s, {copies} copies: {total:.0f} us of all nodes a message ({tiers}; idle cluster's share"
                f" {idle_us_per_s / rate:.0f}), {figures['rows']:.1f} rows, {figures['syncs']:.2f} syncs; PUBACK P50"
                f" {ack['p50'] / 1e3:.2f} P99 {ack['p99'] / 1e3:.2f} ms; fdatasync P50 before {raw_before[0]:.2f},"
                f" after {raw_after[0]:.2f}; generator late P99 {late['p99'] / 1e3:.2f} ms",
                flush=True,
            )
    return failed
