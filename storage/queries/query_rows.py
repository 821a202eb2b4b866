"""This node's partitions for queries: serving partitions, their clocks, ages of queues, names of origins."""

from collections.abc import Callable, Iterator, Mapping

from storage.hosting.hosted_partition import HostedPartition
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.rows import NEVER, STATE_RELEASED, QueueEntry, decode_entry, outline_entry
from wire.messages.cluster_map import ClusterMap
from wire.queries.ordered_keys import OrderedKeys
from wire.queries.origins import origin_text
from wire.queries.source import QueryRefused
from wire.queries.timestamp_columns import TimestampColumns

__all__ = ["NEVER_EXPIRES", "QueryRows", "first_waiting_seq", "oldest_seq"]

NEVER_EXPIRES = 0xFFFFFFFF


class QueryRows:
    """The partitions of one node.

    Args:
        node: Its name.
        hosted: Partitions with this node as primary.
        cluster_map: Returns the map that this node has applied.
        served_ms: Returns the current served clock of one of them.
        utc_ms: Returns milliseconds since the epoch.
    """

    def __init__(
        self,
        node: str,
        hosted: Mapping[int, HostedPartition],
        cluster_map: Callable[[], ClusterMap],
        served_ms: Callable[[int], int],
        utc_ms: Callable[[], int],
    ) -> None:
        self.node = node
        self._hosted = hosted
        self.map = cluster_map
        self.served_ms = served_ms
        self._moments = TimestampColumns(utc_ms)
        self._sessions: dict[int, OrderedKeys[int]] = {}  # by partition

    def from_partition(self, number: int) -> Iterator[HostedPartition]:
        """Yield the serving partitions from a number on."""
        for found in sorted(self._hosted):
            hosted = self._hosted.get(found)
            if found >= number and hosted is not None and hosted.serving:
                yield hosted

    def numbers(self) -> list[int]:
        """Return the partitions with this node as primary."""
        return list(self._hosted)

    def hosted_now(self, number: int) -> HostedPartition | None:
        """Return a partition with this node as primary, else None."""
        return self._hosted.get(number)

    def of_client(self, client_id: str) -> HostedPartition:
        """Return the partition of a client ID.

        Raises:
            QueryRefused: This node is not its primary, or does not serve it yet.
        """
        cluster_map = self.map()
        number = cluster_map.partition_for(client_id) if cluster_map.partitions else -1
        hosted = self._hosted.get(number)
        if hosted is None:
            primary = cluster_map.partitions[number].primary if number >= 0 else ""
            raise QueryRefused(f"{client_id[:64]!r} is of partition {number}: its primary is {primary or 'none'}")
        if not hosted.serving:
            raise QueryRefused(f"partition {number} of {client_id[:64]!r} does not serve yet", 4)
        return hosted

    def session_of(self, client_id: str) -> tuple[HostedPartition, DurableSession]:
        """Return the durable session of a client ID.

        Raises:
            QueryRefused: There is none.
        """
        hosted = self.of_client(client_id)
        session = hosted.partition.by_client.get(client_id)
        if session is None:
            raise QueryRefused(f"client {client_id[:64]!r} has no stored session")
        return hosted, session

    def sessions_after(
        self, partition: int, number: int, now: float
    ) -> Iterator[tuple[HostedPartition, DurableSession]]:
        """Yield sessions after a cursor, by partition and number."""
        for hosted in self.from_partition(max(0, partition)):
            found = hosted.partition.number
            sessions = hosted.partition.sessions
            behind = number if found == partition else None
            for each in self._keys(hosted).behind(behind, now):
                session = sessions.get(each)
                if session is not None:
                    yield hosted, session
        for gone in self._sessions.keys() - self._hosted.keys():
            del self._sessions[gone]

    def _keys(self, hosted: HostedPartition) -> OrderedKeys[int]:
        partition = hosted.partition
        known = self._sessions.get(partition.number)
        if known is None:
            known = self._sessions[partition.number] = OrderedKeys(lambda: list(partition.sessions))
        return known

    # --- queues

    def entry(self, hosted: HostedPartition, session: DurableSession, session_seq: int) -> QueueEntry | None:
        """Return a stored entry of a queue, None if it is deleted."""
        partition = hosted.partition
        value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
        return decode_entry(session_seq, value) if value is not None else None

    def head_arrival(self, hosted: HostedPartition, session: DurableSession) -> int | None:
        """Return the arrival of a queue's oldest message, 0 if unknown, None for an empty queue."""
        session_seq = oldest_seq(session)
        if session_seq is None:
            return None
        partition = hosted.partition
        value = partition.get(keys.queue_key(partition.number, session.number, session_seq))
        return outline_entry(value)[5] if value is not None else 0

    def age_s(self, hosted: HostedPartition, arrived: int | None) -> float | None:
        """Return the age of an arrival; if that is unknown, how long this node has served its partition."""
        if arrived is None:
            return None
        return max(0, self.served_ms(hosted.partition.number) - (arrived or hosted.served_from_ms)) / 1000

    def utc_of(self, hosted: HostedPartition, served_ms: int) -> int:
        """Convert a served-clock time of a partition to UTC, milliseconds; too late if it was not served meanwhile."""
        number = hosted.partition.number
        now_ms = self.served_ms(number)
        return self._moments.utc_of(min(served_ms, now_ms), now_ms, number)

    def away_s(self, hosted: HostedPartition, session: DurableSession) -> float | None:
        """Return for how long a session has had no connection; None if it has one, or if it never expires."""
        if session.edge or session.deadline == NEVER or session.expiry_s == NEVER_EXPIRES:
            return None
        left_s = (session.deadline - self.served_ms(hosted.partition.number)) / 1000
        return max(0.0, session.expiry_s - left_s)

    def slow_since_ms(self, hosted: HostedPartition, session: DurableSession) -> int | None:
        """Return since when a session has been slow, UTC: disconnected, window full, or an old queue head.

        None if unknown.
        """
        served_ms = self.served_ms(hosted.partition.number)
        away_s = self.away_s(hosted, session)
        if away_s is not None:
            return self.utc_of(hosted, served_ms - int(away_s * 1000))
        waiting = first_waiting_seq(session) if session.out >= session.window else None
        session_seq = waiting if waiting is not None else oldest_seq(session)
        entry = self.entry(hosted, session, session_seq) if session_seq is not None else None
        return self.utc_of(hosted, entry.arrived) if entry is not None and entry.arrived else None

    def oldest_s(self, hosted: HostedPartition) -> float | None:
        """Return the age of the oldest queued message of a partition, None if its queues are empty."""
        partition = hosted.partition

        def head(session: DurableSession) -> int | None:
            return self.head_arrival(hosted, session)

        return self.age_s(hosted, partition.ages.oldest(partition.number, partition.sessions, head))

    def origin(self, kind: int, a: int, b: int) -> str:
        """Return the text of an origin."""
        return origin_text(kind, a, b, self.map())


def oldest_seq(session: DurableSession) -> int | None:
    """Return the oldest entry of a queue that still has its row; released entries have none."""
    for session_seq, flight in (session.made("inflight") or {}).items():
        if flight.state != STATE_RELEASED:
            return int(session_seq)
    return session.push_seq if session.made("sizes") else None


def first_waiting_seq(session: DurableSession) -> int | None:
    """Return the oldest entry that was not sent to the client's edge: it waits for an open window."""
    for session_seq, flight in (session.made("inflight") or {}).items():
        if not flight.out and flight.state != STATE_RELEASED:
            return int(session_seq)
    return session.push_seq if session.made("sizes") else None
