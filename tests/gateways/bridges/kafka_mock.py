"""librdkafka's mock cluster: Kafka brokers in this process, with leader changes and injected errors.

It is part of the library in confluent-kafka's wheel; ctypes finds it by the wheel's list of files.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["INSTALLED", "KafkaMock"]

INSTALLED = importlib.util.find_spec("confluent_kafka") is not None
PRODUCER = 0
PRODUCE = 0  # ApiKey


def _library() -> Any:
    import confluent_kafka  # loads the library's own dependencies

    assert confluent_kafka is not None
    for file in importlib.metadata.files("confluent-kafka") or []:
        if "librdkafka" in file.name and ".so" in file.name:
            return ctypes.CDLL(str(Path(str(file.locate()))))
    raise FileNotFoundError("librdkafka is not in the wheel of confluent-kafka")


class KafkaMock:
    """One mock cluster; ``close`` ends it."""

    def __init__(self, brokers: int = 3, topics: dict[str, int] | None = None) -> None:
        library = self._library = _library()
        library.rd_kafka_new.restype = ctypes.c_void_p
        library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        library.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
        library.rd_kafka_mock_topic_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        library.rd_kafka_mock_broker_set_down.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        library.rd_kafka_mock_broker_set_up.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        library.rd_kafka_mock_partition_set_leader.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int32,
            ctypes.c_int32,
        ]
        library.rd_kafka_mock_topic_set_error.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        library.rd_kafka_mock_cluster_destroy.argtypes = [ctypes.c_void_p]
        library.rd_kafka_destroy.argtypes = [ctypes.c_void_p]
        error = ctypes.create_string_buffer(512)
        self._handle = library.rd_kafka_new(PRODUCER, None, error, len(error))
        assert self._handle, error.value
        self.brokers = brokers
        self._cluster = library.rd_kafka_mock_cluster_new(self._handle, brokers)
        assert self._cluster
        self.bootstraps: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for topic, partitions in (topics or {}).items():
            library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, brokers)

    def down(self, broker: int) -> None:
        """Stop a broker; numbers start at 1."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def up(self, broker: int) -> None:
        """Start it again."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make another broker the leader of a partition."""
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)

    def refuse_topic(self, topic: str, error: int) -> None:
        """Answer metadata of a topic with an error."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)

    def produce_errors(self, *errors: int) -> None:
        """Answer the next produce requests with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        function = self._library.rd_kafka_mock_push_request_errors_array
        function.argtypes = [ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.c_void_p]
        function(self._cluster, PRODUCE, len(errors), array)

    def close(self) -> None:
        """Stop all brokers."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)
