"""``python -m bench.arrivals BOOTSTRAPS COUNT FILE``: a consumer of a Kafka topic, in its own process.

Writes the arrival time of each record, by the number in its first 8 bytes, as one JSON object: on the monotonic clock,
which all processes of a machine share. Ends after COUNT records, or when standard input is closed.
"""

import json
import select
import sys
import time
from pathlib import Path


def arrivals(bootstraps: str, count: int) -> dict[int, float]:
    """Consume from the beginning of four partitions."""
    from confluent_kafka import Consumer, TopicPartition

    options = {"bootstrap.servers": bootstraps, "group.id": "reader", "log_level": 0, "fetch.wait.max.ms": 5}
    consumer = Consumer(options)
    consumer.assign([TopicPartition("upload", number, 0) for number in range(4)])
    print("reads", flush=True)
    found: dict[int, float] = {}
    while len(found) < count and not select.select([sys.stdin], [], [], 0)[0]:
        for record in consumer.consume(500, 0.05):
            value = record.value()
            if value is not None and record.error() is None:
                found.setdefault(int.from_bytes(value[:8], "big"), time.monotonic())
    consumer.close()
    return found


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(arrivals(sys.argv[1], int(sys.argv[2]))))
