"""A true recording of a healthy broker, changed in one place as a bug would change it, is found out each time."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
import trio

from stratamq.history import recorder
from stratamq.history.check import judge
from stratamq.history.history import FOREVER_NS, RunHistory, parse_history
from stratamq.history.operations import Header, HistoryRecord, Kind, OperationPhase
from tests.stratamq.history.mosquitto import INSTALLED, running_mosquitto

Doctor = Callable[[list[HistoryRecord]], list[HistoryRecord]]
WORKLOADS = ("queue", "routes", "wills", "shared", "retained", "takeover")


async def record_all(folder: Path) -> dict[str, bytes]:
    sinks = {workload: io.BytesIO() for workload in WORKLOADS}
    async with running_mosquitto(folder) as broker, trio.open_nursery() as nursery:
        for workload, sink in sinks.items():
            address = ("127.0.0.1", broker.port)
            settings = recorder.RecordSettings((address,), workload, 1.5, seed=11, operations_per_s=40, detection_s=1.0)
            nursery.start_soon(recorder.record, settings, sink)
    return {workload: sink.getvalue() for workload, sink in sinks.items()}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One recording of each workload, all made at once."""
    if not INSTALLED:
        pytest.skip("Mosquitto is not installed")
    return trio.run(record_all, tmp_path_factory.mktemp("mosquitto"))


def middle(records: list[HistoryRecord], wanted: Callable[[HistoryRecord], bool]) -> int:
    """Return the position of the middle one of the records wanted."""
    positions = [position for position, record in enumerate(records) if wanted(record)]
    assert positions, "the recording has nothing to doctor"
    return positions[len(positions) // 2]


def is_receive(record: HistoryRecord, qos: int) -> bool:
    return record.kind is Kind.RECEIVE and record.qos == qos and not record.retain and record.handed_over


def lose_a_message(records: list[HistoryRecord]) -> list[HistoryRecord]:
    """Let nobody get a message that was accepted, and sent when its subscriber had been granted its filters."""
    accepted = {r.operation for r in records if r.kind is Kind.PUBLISH and r.phase is OperationPhase.OK}
    granted_ns = {r.client_id: r.time_ns for r in records if r.kind is Kind.SUBSCRIBE and r.phase is OperationPhase.OK}
    sent_ns = {
        r.payload: r.time_ns
        for r in records
        if r.kind is Kind.PUBLISH and r.phase is OperationPhase.INVOKE and r.operation in accepted
    }

    def owed(r: HistoryRecord) -> bool:
        return is_receive(r, 1) and sent_ns.get(r.payload, 0) > granted_ns.get(r.client_id, FOREVER_NS)

    victim = records[middle(records, owed)]
    return [r for r in records if r.kind is not Kind.RECEIVE or r.payload != victim.payload]


def hand_over_twice(records: list[HistoryRecord]) -> list[HistoryRecord]:
    position = middle(records, lambda r: is_receive(r, 2))
    return [*records[: position + 1], records[position], *records[position + 1 :]]


def swap_two_deliveries(records: list[HistoryRecord]) -> list[HistoryRecord]:
    """Exchange the payloads of two successive deliveries of one stream, neither of them ever repeated."""
    times = Counter((r.client_id, r.payload) for r in records if r.kind is Kind.RECEIVE)
    sent = {r.payload: r for r in records if r.kind is Kind.PUBLISH and r.phase is OperationPhase.INVOKE}
    latest: dict[tuple[str, str, int], int] = {}
    pairs = []
    for position, record in enumerate(records):
        if record.kind is Kind.RECEIVE and record.payload in sent and times[record.client_id, record.payload] == 1:
            key = record.client_id, record.topic, sent[record.payload].qos
            if key in latest and records[latest[key]].payload != record.payload:
                pairs.append((latest[key], position))
            latest[key] = position
    first, second = pairs[len(pairs) // 2]
    changed = list(records)
    changed[first] = msgspec.structs.replace(records[first], payload=records[second].payload)
    changed[second] = msgspec.structs.replace(records[second], payload=records[first].payload)
    return changed


def deliver_after_unsuback(records: list[HistoryRecord]) -> list[HistoryRecord]:
    """Hand the message that was sent after UNSUBACK to the client that had unsubscribed."""
    position = middle(
        records,
        lambda r: r.kind is Kind.PUBLISH and r.phase is OperationPhase.OK and sent_after(records, r) is not None,
    )
    publish = sent_after(records, records[position])
    assert publish is not None and publish.payload is not None
    who = next(r for r in records if r.process == publish.payload.split("-")[0] and r.kind is Kind.SUBSCRIBE)
    arrival = HistoryRecord(
        time_ns=records[position].time_ns,
        phase=OperationPhase.EVENT,
        kind=Kind.RECEIVE,
        process=who.process,
        client_id=who.client_id,
        connection=who.connection,
        topic=publish.topic,
        payload=publish.payload,
        qos=1,
    )
    return [*records[: position + 1], arrival, *records[position + 1 :]]


def sent_after(records: list[HistoryRecord], completion: HistoryRecord) -> HistoryRecord | None:
    """Return the invoke of a publish that the routes workload sent after UNSUBACK."""
    for record in records:
        if record.operation == completion.operation and record.phase is OperationPhase.INVOKE:
            return record if (record.payload or "").endswith("-after") else None
    return None


def silence_a_will(records: list[HistoryRecord]) -> list[HistoryRecord]:
    will = records[middle(records, lambda r: is_receive(r, 2))].payload
    return [r for r in records if r.kind is not Kind.RECEIVE or r.payload != will]


def fire_a_will_twice(records: list[HistoryRecord]) -> list[HistoryRecord]:
    return hand_over_twice(records)


def give_two_members_one_message(records: list[HistoryRecord]) -> list[HistoryRecord]:
    position = middle(records, lambda r: is_receive(r, 2))
    other = next(
        r
        for r in records
        if r.kind is Kind.SUBSCRIBE and r.phase is OperationPhase.OK and r.client_id != records[position].client_id
    )
    copy = msgspec.structs.replace(
        records[position], process=other.process, client_id=other.client_id, connection=other.connection
    )
    return [*records[: position + 1], copy, *records[position + 1 :]]


def read_the_value_before(records: list[HistoryRecord]) -> list[HistoryRecord]:
    """Let a read return a value that a read before had already seen replaced: one behind the other, none beside."""
    begun = {
        r.operation: at for at, r in enumerate(records) if r.kind is Kind.READ and r.phase is OperationPhase.INVOKE
    }
    ended = [
        (begun[r.operation], at)
        for at, r in enumerate(records)
        if r.kind is Kind.READ and r.phase is OperationPhase.OK and r.payload
    ]
    for (_, first), (second_begun, second), (third_begun, third) in combinations(ended, 3):
        old, new = records[first].payload, records[second].payload
        topics = {records[begun[records[at].operation]].topic for at in (first, second, third)}
        if (
            len(topics) == 1
            and old not in (new, records[third].payload)
            and first < second_begun < second < third_begun
        ):
            changed = list(records)
            changed[third] = msgspec.structs.replace(records[third], payload=old)
            return changed
    raise AssertionError("the recording has nothing to doctor")


def forget_a_session(records: list[HistoryRecord]) -> list[HistoryRecord]:
    position = middle(records, lambda r: r.kind is Kind.CONNECT and r.session_present is True)
    changed = list(records)
    changed[position] = msgspec.structs.replace(records[position], session_present=False)
    return changed


def answer_the_old_connection(records: list[HistoryRecord]) -> list[HistoryRecord]:
    """Move a whole exchange of an older connection behind the CONNACK of the newer one."""
    history = RunHistory(Header(workload="takeover", seed=0, broker=()), records)
    for connections in history.connections_of.values():
        for older in connections:
            newer = next((c for c in connections if c.connect.started_ns > older.connect.ended_ns), None)
            exchanges = [
                op
                for op in history.of_kind(Kind.PUBLISH)
                if op.invoke.connection == older.number and op.ok and newer is not None and newer.connect.ok
            ]
            if exchanges and newer is not None:
                moved = exchanges[-1].proof
                late_ns = newer.connect.ended_ns + 1
                rest = [r for r in records if r not in moved]
                position = next(i for i, r in enumerate(rest) if r.time_ns > late_ns)
                late = [msgspec.structs.replace(r, time_ns=late_ns) for r in moved]
                return [*rest[:position], *late, *rest[position:]]
    raise AssertionError("the recording has nothing to doctor")


def refuse_what_was_delivered(records: list[HistoryRecord]) -> list[HistoryRecord]:
    delivered = {r.payload for r in records if r.kind is Kind.RECEIVE}
    sent = {r.operation: r.payload for r in records if r.kind is Kind.PUBLISH and r.phase is OperationPhase.INVOKE}
    resent = {r.operation for r in records if r.kind is Kind.RESEND}
    position = middle(
        records,
        lambda r: (
            r.kind is Kind.PUBLISH
            and r.phase is OperationPhase.OK
            and sent[r.operation] in delivered
            and r.operation not in resent
        ),
    )
    changed = list(records)
    changed[position] = msgspec.structs.replace(records[position], phase=OperationPhase.FAIL, reason_code=0x97)
    return changed


@pytest.mark.parametrize(
    ("workload", "doctor", "checker"),
    [
        ("queue", lose_a_message, "lost"),
        ("queue", hand_over_twice, "duplicate"),
        ("queue", swap_two_deliveries, "order"),
        ("queue", forget_a_session, "session_present"),
        ("queue", refuse_what_was_delivered, "aborted_reads"),
        ("routes", deliver_after_unsuback, "unsubscribe_barrier"),
        ("wills", silence_a_will, "will_once"),
        ("wills", fire_a_will_twice, "will_once"),
        ("shared", lose_a_message, "shared_group"),
        ("shared", give_two_members_one_message, "shared_group"),
        ("retained", read_the_value_before, "retained_register"),
        ("takeover", answer_the_old_connection, "single_owner"),
        ("takeover", lose_a_message, "lost"),
    ],
)
def test_one_change_is_found(recordings: dict[str, bytes], workload: str, doctor: Doctor, checker: str) -> None:
    true = parse_history(recordings[workload])
    assert judge(true).clean, [finding.message for finding in judge(true).findings]
    doctored = RunHistory(true.header, doctor(true.records))
    assert judge(doctored).reports[checker].found > 0
