"""The proof from ack ledgers in this process, with the rules of ``jobs/proof.py``."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from jobs.proof_result import CLOCK_MARGIN_MS, Proof
from jobs.removed_entries import RemovedEntries
from wire.sstable.ledger import PICKED_MARK

__all__ = ["AccountedDebt", "LedgerLine", "StoredEntries", "account", "read_ledgers", "summarize"]

NEVER_MS = 1 << 62


class _Operation(msgspec.Struct):
    p: int
    op: int
    pe: int
    m: list[list[Any]] | None = None
    d: list[list[int]] | None = None


class _Line(msgspec.Struct):
    """One line of a ledger file, with the fields of ``wire/sstable/ledger.py``."""

    e: str
    t: int | None = None
    o: str | None = None
    q: int | None = None
    h: int | None = None
    p: int | None = None
    ps: list[int] | None = None
    d: list[list[int]] | None = None
    s: int | None = None
    n: int | None = None
    op: int | None = None
    pe: int | None = None
    r: str | None = None
    b: list[_Operation] | None = None
    k: list[list[Any]] | None = None


class LedgerLine(NamedTuple):
    """One record; ``event`` is "" for an invalid line."""

    folder: str
    event: str
    t: int | None = None
    origin: str | None = None
    qos: int | None = None
    topic_hash: int | None = None
    p: int = -1
    partitions: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()  # session, session_seq
    session: int | None = None
    seq: int | None = None
    op_index: int | None = None
    epoch: int | None = None
    reason: str | None = None


class AccountedDebt(NamedTuple):
    """An acknowledged message and a session, with the state of the debt."""

    partition: int
    origin: str
    session: int
    qos: int
    state: str
    duplicated: bool


@dataclass(slots=True)
class StoredEntries:
    """Queue entries of an export, and those that its session rows mark as finished."""

    queued: set[tuple[int, int, int]] = field(default_factory=set)  # partition, session, session_seq
    acked_up_to: dict[tuple[int, int], int] = field(default_factory=dict)  # partition, session
    acked_gaps: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    removed: RemovedEntries = field(default_factory=RemovedEntries)  # by compactions, as expired

    def is_finished(self, partition: int, session: int, seq: int) -> bool:
        """Return whether the session row marks an entry as finished."""
        key = (partition, session)
        return key in self.acked_up_to and (seq <= self.acked_up_to[key] or seq in self.acked_gaps[key])


def read_ledgers(files: Sequence[str]) -> list[LedgerLine]:
    """Return the committed records of ledger files."""
    decoder = msgspec.json.Decoder(_Line)
    lines: list[LedgerLine] = []
    for name in files:
        folder = "file://" + quote(str(Path(name).parent), safe="/!$&'()*+,;=:@~-._")
        with gzip.open(name, "rb") if name.endswith(".gz") else Path(name).open("rb") as file:
            for text in file:
                if text.strip():
                    lines += _records(decoder, folder, text)
    return _committed(lines)


def _records(decoder: msgspec.json.Decoder[_Line], folder: str, text: bytes) -> Iterator[LedgerLine]:
    try:
        line = decoder.decode(text)
        if line.e == "acks":
            yield from [_acknowledged(folder, line, row) for row in line.k or ()]
        elif line.e == "operations":
            for operation in line.b or ():
                yield from _of_operation(folder, line, operation)
        else:
            yield LedgerLine(
                folder,
                line.e,
                line.t,
                line.o,
                line.q,
                line.h,
                -1 if line.p is None else line.p,
                tuple(line.ps or ()),
                tuple((pair[0], pair[1]) for pair in line.d or ()),
                line.s,
                line.n,
                line.op,
                line.pe,
                line.r,
            )
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, IndexError):
        yield LedgerLine(folder, "")


def _origin(row: Sequence[Any], mark: str) -> str:
    return f"{row[0]}:{int(row[1]):x}:{int(row[2]):x}{mark}"


def _acknowledged(folder: str, line: _Line, row: Sequence[Any]) -> LedgerLine:
    mark = f"@{line.o}" if str(row[0]) == "0" else ""
    partitions = tuple(int(number) for number in row[6:])
    return LedgerLine(folder, "acked", int(row[4]), _origin(row, mark), int(row[3]), int(row[5]), partitions=partitions)


def _of_operation(folder: str, line: _Line, operation: _Operation) -> Iterator[LedgerLine]:
    of = {"t": line.t, "p": operation.p, "op_index": operation.op, "epoch": operation.pe}
    for row in operation.m or ():
        pairs = tuple((int(row[at]), int(row[at + 1])) for at in range(5, len(row) - 1, 2))
        yield LedgerLine(folder, "queued", origin=_origin(row, str(row[3])), qos=int(row[4]), pairs=pairs, **of)  # type: ignore[arg-type]
    for session, first, last in operation.d or ():
        for seq in range(first, last + 1):
            yield LedgerLine(folder, "delivered", session=session, seq=seq, **of)  # type: ignore[arg-type]


def _committed(lines: list[LedgerLine]) -> list[LedgerLine]:
    """Omit recorded operations that were never committed: above the start of a later partition_epoch."""
    began: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        if line.event == "began" and line.epoch is not None and line.op_index is not None:
            began[line.p].append((line.epoch, line.op_index))
    ends: dict[tuple[int, int], int] = {}
    for partition, epoch in {(line.p, line.epoch) for line in lines if line.epoch is not None}:
        found = [op_index for later, op_index in began[partition] if later > epoch]
        if found:
            ends[partition, epoch] = min(found)
    return [
        line
        for line in lines
        if line.op_index is None
        or line.epoch is None
        or (line.p, line.epoch) not in ends
        or line.op_index <= ends[line.p, line.epoch]
    ]


@dataclass(slots=True)
class _Acked:
    qos: int = 0
    topic_hash: int | None = None
    t: int | None = None
    partitions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Outcome:
    """Outcome of the entries of one debt."""

    seqs: set[int] = field(default_factory=set)
    delivered: int = 0
    expired: int = 0
    dropped: int = 0
    is_finished: bool = False
    is_queued: bool = False
    is_removed: bool = False


def account(lines: Iterable[LedgerLine], store: StoredEntries, exported: Mapping[int, int]) -> list[AccountedDebt]:
    """Return every debt with its state.

    Args:
        lines: read_ledgers of edges and partitions.
        exported: Partition -> op_index of the store.
    """
    by_event: dict[str, list[LedgerLine]] = defaultdict(list)
    for line in lines:
        by_event[line.event].append(line)
    acked = _acked(by_event["acked"])
    entries: dict[tuple[int, str, int, int], int] = {}
    for line in by_event["queued"]:
        for session, seq in line.pairs:
            key = (line.p, str(line.origin), session, seq)
            entries[key] = max(entries.get(key, -1), -1 if line.op_index is None else line.op_index)
    outcomes = _outcomes(by_event, entries, store, exported)
    refused = {(line.p, line.origin, line.session) for line in by_event["dropped"] if line.origin is not None}
    ended = {(line.p, line.session) for line in by_event["ended"]}
    accounted = []
    for partition, origin, session, qos in _owed(by_event, acked, entries):
        found = outcomes.get((partition, origin, session))
        state = _state(found, (partition, origin, session) in refused, (partition, session) in ended)
        twice = qos == 2 and found is not None and (len(found.seqs) > 1 or found.delivered > 1)
        accounted.append(AccountedDebt(partition, origin, session, qos, state, twice))
    return accounted


def _acked(lines: list[LedgerLine]) -> dict[str, _Acked]:
    """Return acknowledged messages by origin, with the time of the first acknowledgement."""
    found: dict[str, _Acked] = {}
    for line in lines:
        if line.origin is None:
            continue
        one = found.setdefault(line.origin, _Acked())
        one.qos = max(one.qos, line.qos or 0)
        if line.topic_hash is not None:
            one.topic_hash = line.topic_hash if one.topic_hash is None else max(one.topic_hash, line.topic_hash)
        if line.t is not None:
            one.t = line.t if one.t is None else min(one.t, line.t)
        one.partitions.update(line.partitions)
    return found


def _owed(
    by_event: Mapping[str, list[LedgerLine]],
    acked: Mapping[str, _Acked],
    entries: Mapping[tuple[int, str, int, int], int],
) -> Iterator[tuple[int, str, int, int]]:
    """Yield all debts: partition, origin, session, QoS.

    A partition without a record of a message has a debt to the unknown session -1. A message that a partition queued
    for a shared group is a debt, acknowledged or not.
    """
    debts = {(partition, origin, session) for partition, origin, session, _ in entries}
    for line in by_event["dropped"]:
        if line.origin is not None and line.session is not None:
            debts.add((line.p, line.origin, line.session))
    debts |= _subscribed_then(by_event, acked)
    for partition, origin, session in debts:
        if origin in acked:
            yield partition, origin, session, acked[origin].qos
    arrived = {(line.p, line.origin) for event in ("queued", "dropped") for line in by_event[event]}
    for origin, one in acked.items():
        for partition in one.partitions:
            if (partition, origin) not in arrived:
                yield partition, origin, -1, one.qos
    picked: dict[tuple[int, str, int], int] = {}
    for line in by_event["queued"]:
        if line.origin is not None and PICKED_MARK in line.origin:
            for session, _ in line.pairs:
                key = (line.p, line.origin, session)
                picked[key] = max(picked.get(key, 0), line.qos or 0)
    for (partition, origin, session), qos in picked.items():
        yield partition, origin, session, qos


def _first(lines: list[LedgerLine]) -> dict[tuple[int, int | None, int | None], int]:
    found: dict[tuple[int, int | None, int | None], int] = {}
    for line in lines:
        if line.t is not None:
            key = (line.p, line.session, line.topic_hash)
            found[key] = min(found.get(key, line.t), line.t)
    return found


def _subscribed_then(
    by_event: Mapping[str, list[LedgerLine]], acked: Mapping[str, _Acked]
) -> set[tuple[int, str, int]]:
    """Return debts from subscriptions to the exact topic, independent of the partition's record."""
    until = _first(by_event["unsubscribed"])
    ended: dict[tuple[int, int | None], int] = {}
    for line in by_event["ended"]:
        if line.t is not None:
            ended[line.p, line.session] = min(ended.get((line.p, line.session), line.t), line.t)
    by_topic: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for origin, one in acked.items():
        if one.topic_hash and one.t is not None:
            by_topic[one.topic_hash].append((origin, one.t))
    found = set()
    for (partition, session, topic_hash), since in _first(by_event["subscribed"]).items():
        end = min(until.get((partition, session, topic_hash), NEVER_MS), ended.get((partition, session), NEVER_MS))
        for origin, t in by_topic.get(topic_hash, ()) if topic_hash is not None and session is not None else ():
            if since + CLOCK_MARGIN_MS < t and t + CLOCK_MARGIN_MS < end:
                found.add((partition, origin, session))
    return found  # type: ignore[return-value]


def _outcomes(
    by_event: Mapping[str, list[LedgerLine]],
    entries: Mapping[tuple[int, str, int, int], int],
    store: StoredEntries,
    exported: Mapping[int, int],
) -> dict[tuple[int, str, int], _Outcome]:
    finished: dict[str, dict[tuple[int, int | None, int], int]] = {}
    for event in ("delivered", "expired", "dropped"):
        by_node: dict[tuple[str, int, int | None, int], int] = defaultdict(int)
        for line in by_event[event]:
            if line.seq is not None:
                by_node[line.folder, line.p, line.session, line.seq] += 1
        finished[event] = {}
        for (_, partition, session, seq), count in by_node.items():  # replicas make equal records
            key = (partition, session, seq)
            finished[event][key] = max(finished[event].get(key, 0), count)
    outcomes: dict[tuple[int, str, int], _Outcome] = {}
    for (partition, origin, session, seq), op_index in entries.items():
        one = outcomes.setdefault((partition, origin, session), _Outcome())
        key = (partition, session, seq)
        one.seqs.add(seq)
        one.delivered = max(one.delivered, finished["delivered"].get(key, 0))
        one.expired = max(one.expired, finished["expired"].get(key, 0))
        one.dropped = max(one.dropped, finished["dropped"].get(key, 0))
        one.is_finished |= store.is_finished(partition, session, seq)
        newer = partition in exported and op_index > exported[partition]
        one.is_queued |= newer or key in store.queued
        one.is_removed |= store.removed.has(partition, session, seq)
    return outcomes


def _state(found: _Outcome | None, refused: bool, session_ended: bool) -> str:
    if found is None:
        return "DROPPED" if refused else "LOST"
    if found.delivered:
        return "DELIVERED"
    if found.expired:
        return "EXPIRED"
    if found.dropped or refused:
        return "DROPPED"
    if found.is_finished:
        return "DELIVERED"
    if found.is_queued:
        return "QUEUED"
    if session_ended:
        return "DROPPED"
    return "EXPIRED" if found.is_removed else "LOST"


def summarize(accounted: Sequence[AccountedDebt]) -> Proof:
    """Return the totals: ACKED is the number of debts, each in one of the five states."""
    states: dict[str, int] = defaultdict(int)
    for debt in accounted:
        states[debt.state] += 1
    return Proof(
        acked=len(accounted),
        delivered=states["DELIVERED"],
        queued=states["QUEUED"],
        expired=states["EXPIRED"],
        dropped=states["DROPPED"],
        lost=states["LOST"],
        duplicated=sum(debt.duplicated for debt in accounted),
        shared=sum(PICKED_MARK in debt.origin for debt in accounted),
    )
