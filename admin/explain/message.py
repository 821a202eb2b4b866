"""Explains the deliveries of one message from the nodes' rows, journals, traces and ledgers.

Its origin identifies a message in queues, retained messages, journals and traces. Successful deliveries are recorded
only in a trace or a ledger; an explanation without them states that.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from admin.explain.explanation import Explanation, ExplanationStep
from admin.explain.texts import clock, count, span
from admin.explain.topic import is_full
from admin.queries import TopicView
from admin.scatter_gather import MissingRows
from conf.errors import ExitCode, UserError
from wire.messages.client_rows import InFlightRow, QueuedMessageRow
from wire.messages.node_rows import JournalRow, TraceEventRow
from wire.messages.topic_rows import RetainedMessageRow

__all__ = ["NO_TRACE", "DeliveryEnd", "Evidence", "check_origin", "explain_message", "explain_unknown_message"]

NO_TRACE = "no_trace"  # step of a message without any record
ORIGIN = re.compile(r"[A-Za-z0-9._-]{1,64}/[0-9]{1,20}/[0-9]{1,20}|(session|will)/[0-9]{1,8}-[0-9]{1,20}/[0-9]{1,20}")
BLOCKERS = ("no_primary", "queue_full", "window", "nobody")  # of a topic, the deciding one first
STAGES = (
    *("received", "refused", "resolved", "forwarded", "accepted", "retained", "matched", "queued", "committed"),
    *("pushed", "redispatched", "written", "acked", "acknowledged", "expired", "dropped"),
)


class DeliveryEnd(NamedTuple):
    """A copy that its client received; the queue no longer holds it."""

    node: str
    client_id: str
    seq: int | None = None
    acknowledged_at_ms: int | None = None  # None: not recorded
    connected_at_ms: int | None = None  # of the current connection; None: none, or not known


class Evidence(NamedTuple):
    """Rows about one message, each with the node that answered."""

    journal: Sequence[tuple[str, JournalRow]] = ()
    events: Sequence[tuple[str, TraceEventRow]] = ()
    queued: Sequence[
        tuple[str, str, QueuedMessageRow, int]
    ] = ()  # node, client, entry, unacknowledged entries before it
    published: Sequence[tuple[str, InFlightRow]] = ()  # at its publisher's edge: not answered yet
    retained: Sequence[tuple[str, RetainedMessageRow]] = ()
    finished: Sequence[DeliveryEnd] = ()
    recorded: Sequence[tuple[str, ExplanationStep]] = ()  # stage, and the step of a ledger
    had: Sequence[str] = ()
    lacked: Sequence[MissingRows] = ()


def check_origin(text: str) -> str:
    """Return a valid origin.

    Raises:
        UserError: The text is not an origin.
    """
    if ORIGIN.fullmatch(text) is None:
        form = "EDGE/INCARNATION/NUMBER, as journal, queue and trace print it"
        raise UserError(f"{text[:100]!r} is not an origin: {form}", ExitCode.USAGE)
    return text


def explain_message(origin: str, found: Evidence) -> Explanation:
    """Explain the deliveries of a message, in the order of its path."""
    steps = [
        *(step for _, step in sorted([*_from_traces(found), *_from_ledgers(found)], key=lambda pair: pair[0])),
        *_from_publisher(found),
        *_from_queues(found),
        *_from_journal(found),
        *_from_deliveries(found),
    ]
    question = f"what became of {origin}?"
    cause = _decisive(steps)
    if not steps:
        cause = ExplanationStep(
            "",
            NO_TRACE,
            "no record of it: no node that answered acknowledged it, or it was delivered without being "
            "recorded (no trace ran, and the ledgers that were read lack it)",
        )
        steps = [cause]
    return Explanation(question, steps, cause, found.had, found.lacked)


def explain_unknown_message(story: Explanation, view: TopicView, now: Explanation) -> Explanation:
    """Add the conditions that block messages of its topic now to the explanation of a message without a record."""
    blockers = [step for step in now.steps if step.what in ("no_primary", "queue_full", "nobody")]
    for node, match in view.matches:
        if match.client_id is not None and not match.why and is_full(match):
            why = (
                f"{match.client_id!r} receives {view.topic!r}, and its window is full: {match.inflight} of "
                f"{match.window}"
            )
            facts = {"client_id": match.client_id, "window": match.window}
            blockers.append(ExplanationStep(node, "window", f"{why} are not acknowledged", facts=facts))
    cause = next((step for what in BLOCKERS for step in blockers if step.what == what), story.cause)
    return story._replace(steps=[*story.steps, *blockers], cause=cause)


def _decisive(steps: Sequence[ExplanationStep]) -> ExplanationStep | None:
    """Return the step at which the message is or was lost: a drop, a queue, a missing acknowledgement."""
    finished = [step.facts for step in steps if step.what == "acked" and step.facts]
    for what in ("drop", "dropped", "refused", "expired", "queued", "unfinished", "earlier_connection"):
        found = next((step for step in steps if step.what == what and not _is_one_of(step, finished)), None)
        if found is not None:
            return found
    return steps[-1] if steps else None


def _is_one_of(step: ExplanationStep, finished: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a step is about an entry that its client acknowledged."""
    names = ("client_id", "seq")
    return any(all(step.facts.get(name, "") == one[name] for name in names) for one in finished)


def _from_traces(found: Evidence) -> Iterator[tuple[tuple[int, int], ExplanationStep]]:
    for node, event in found.events:
        stage = event.stage or ""
        rank = STAGES.index(stage) if stage in STAGES else len(STAGES)
        client = f" for {event.client_id!r}" if event.client_id else ""
        seq = f" as entry {event.seq}" if event.seq is not None else ""
        place = f" in partition {event.partition}" if event.partition is not None else ""
        why = f": {event.reason}" if event.reason else ""
        more = f" ({event.detail})" if event.detail else ""
        at_us = event.at_us or 0
        facts = {"client_id": event.client_id, "seq": event.seq} if event.seq is not None else {}
        yield (
            (rank, at_us),
            ExplanationStep(node, stage, f"{stage}{client}{seq}{place}{why}{more}", at_us // 1000 or None, facts),
        )


def _from_ledgers(found: Evidence) -> Iterator[tuple[tuple[int, int], ExplanationStep]]:
    for stage, step in found.recorded:
        yield (STAGES.index(stage), (step.at_ms or 0) * 1000), step


def _from_publisher(found: Evidence) -> Iterator[ExplanationStep]:
    for node, row in found.published:
        waits = f"; it waits for {', '.join(row.waits_for)}" if row.waits_for else ""
        age = f" for {span(row.age_s)}" if row.age_s is not None else ""
        what = "is not released by its publisher" if row.state == "unreleased" else f"is not answered{age}{waits}"
        yield ExplanationStep(
            node, "unfinished", f"packet {row.packet} of {row.client_id!r} {what}", facts={"packet": row.packet}
        )


def _from_queues(found: Evidence) -> Iterator[ExplanationStep]:
    for node, client_id, row, before in found.queued:
        verb = "is" if before == 1 else "are"
        behind = f", behind {count(before, 'entry', 'entries')} that {verb} not acknowledged" if before else ""
        sent = {"sent": "sent and not acknowledged", "released": "released, PUBCOMP is missing"}.get(row.state or "")
        packet = f" as packet {row.packet}" if row.packet else ""
        expires = f"; it expires in {span(row.expires_in_s)}" if row.expires_in_s is not None else ""
        age = f" for {span(row.age_s)}" if row.age_s is not None else ""
        state = f"{sent}{packet}" if sent else f"waits{age}{behind}"
        yield ExplanationStep(
            node,
            "queued",
            f"entry {row.seq} in the queue of {client_id!r}: {state}{expires}",
            row.arrived_at_ms,
            {"client_id": client_id, "seq": row.seq, "state": row.state},
        )
    for node, message in found.retained:
        yield ExplanationStep(
            node, "retained", f"it is the retained message of {message.topic!r} in partition {message.partition}"
        )


def _from_journal(found: Evidence) -> Iterator[ExplanationStep]:
    for node, entry in found.journal:
        of = f" for {entry.client_id!r}" if entry.client_id else ""
        more = f" ({entry.detail})" if entry.detail else ""
        yield ExplanationStep(node, entry.event or "", f"{entry.event}{of}: {entry.reason}{more}", entry.at_ms)


def _from_deliveries(found: Evidence) -> Iterator[ExplanationStep]:
    for node, client_id, seq, acknowledged_at_ms, connected_at_ms in found.finished:
        facts = {"client_id": client_id, "seq": seq}
        if acknowledged_at_ms is None:
            newer = f"; the current connection was opened at {clock(connected_at_ms)}" if connected_at_ms else ""
            why = f"entry {seq} of {client_id!r} is not in its queue: it was acknowledged, or dropped{newer}"
            yield ExplanationStep(node, "finished", why, None, facts)
        elif connected_at_ms is not None and connected_at_ms > acknowledged_at_ms:
            later_s = (connected_at_ms - acknowledged_at_ms) / 1000
            why = (
                f"{client_id!r} acknowledged it over an earlier connection; the current one was opened "
                f"{span(later_s)} later"
            )
            yield ExplanationStep(node, "earlier_connection", why, connected_at_ms, facts)
