"""The fate of one message: rows that nodes hold of it now, entries of journals and traces, and the sources lacked.

A message is known by its origin, which queues, retained messages, journals and traces repeat. Nobody writes down a
delivery that went well unless a trace was asked for: a story without a trace of the message says so.
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

__all__ = ["NO_TRACE", "DeliveryEnd", "Evidence", "check_origin", "message_story", "unknown_story"]

NO_TRACE = "no_trace"  # the step of a message that nobody knows anything of
ORIGIN = re.compile(r"[A-Za-z0-9._-]{1,64}/[0-9]{1,20}/[0-9]{1,20}|(session|will)/[0-9]{1,8}-[0-9]{1,20}/[0-9]{1,20}")
HINDERS = ("no_primary", "queue_full", "window", "nobody")  # of a topic, the one that decides first
STAGES = (
    *("received", "refused", "resolved", "forwarded", "accepted", "retained", "matched", "queued", "committed"),
    *("pushed", "redispatched", "written", "acked", "acknowledged", "expired", "dropped"),
)


class DeliveryEnd(NamedTuple):
    """A copy that its client has, or had: the queue does not hold it any more."""

    node: str
    client_id: str
    seq: int | None = None
    acknowledged_at_ms: int | None = None  # None: nobody was asked to remember
    connected_at_ms: int | None = None  # of the connection that is there now; None: there is none, or it is not known


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
    recorded: Sequence[tuple[str, ExplanationStep]] = ()  # stage, and what a ledger has
    had: Sequence[str] = ()
    lacked: Sequence[MissingRows] = ()


def check_origin(text: str) -> str:
    """Return an origin.

    Raises:
        UserError: The text cannot be one.
    """
    if ORIGIN.fullmatch(text) is None:
        form = "EDGE/INCARNATION/NUMBER, as journal, queue and trace print it"
        raise UserError(f"{text[:100]!r} is no origin: {form}", ExitCode.USAGE)
    return text


def message_story(origin: str, found: Evidence) -> Explanation:
    """Tell what became of a message, in the order of its way."""
    steps = [
        *(step for _, step in sorted([*_traced(found), *_recorded(found)], key=lambda pair: pair[0])),
        *_published(found),
        *_kept(found),
        *_noted(found),
        *_finished(found),
    ]
    question = f"what became of {origin}?"
    cause = _decisive(steps)
    if not steps:
        cause = ExplanationStep(
            "",
            NO_TRACE,
            "no trace of it: no node that answered acknowledged it, or it was delivered and nobody was asked to "
            "remember (no trace ran, and no ledger that was read has it)",
        )
        steps = [cause]
    return Explanation(question, steps, cause, found.had, found.lacked)


def unknown_story(story: Explanation, view: TopicView, now: Explanation) -> Explanation:
    """Say of a message that no node knows what keeps messages of its topic from somebody now."""
    hinders = [step for step in now.steps if step.what in ("no_primary", "queue_full", "nobody")]
    for node, match in view.matches:
        if match.client_id is not None and not match.why and is_full(match):
            why = f"{match.client_id!r} gets {view.topic!r}, and its window is full: {match.inflight} of {match.window}"
            facts = {"client_id": match.client_id, "window": match.window}
            hinders.append(ExplanationStep(node, "window", f"{why} are not acknowledged", facts=facts))
    cause = next((step for what in HINDERS for step in hinders if step.what == what), story.cause)
    return story._replace(steps=[*story.steps, *hinders], cause=cause)


def _decisive(steps: Sequence[ExplanationStep]) -> ExplanationStep | None:
    """Return the step at which the message is, or was lost: a drop, a queue, an acknowledgement that lacks."""
    finished = [step.facts for step in steps if step.what == "acked" and step.facts]
    for what in ("drop", "dropped", "refused", "expired", "queued", "unfinished", "earlier_connection"):
        found = next((step for step in steps if step.what == what and not _is_one_of(step, finished)), None)
        if found is not None:
            return found
    return steps[-1] if steps else None


def _is_one_of(step: ExplanationStep, finished: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a step is about an entry that its client has acknowledged."""
    names = ("client_id", "seq")
    return any(all(step.facts.get(name, "") == one[name] for name in names) for one in finished)


def _traced(found: Evidence) -> Iterator[tuple[tuple[int, int], ExplanationStep]]:
    for node, event in found.events:
        stage = event.stage or ""
        rank = STAGES.index(stage) if stage in STAGES else len(STAGES)
        who = f" for {event.client_id!r}" if event.client_id else ""
        seq = f" as entry {event.seq}" if event.seq is not None else ""
        place = f" in partition {event.partition}" if event.partition is not None else ""
        why = f": {event.reason}" if event.reason else ""
        more = f" ({event.detail})" if event.detail else ""
        at_us = event.at_us or 0
        facts = {"client_id": event.client_id, "seq": event.seq} if event.seq is not None else {}
        yield (
            (rank, at_us),
            ExplanationStep(node, stage, f"{stage}{who}{seq}{place}{why}{more}", at_us // 1000 or None, facts),
        )


def _recorded(found: Evidence) -> Iterator[tuple[tuple[int, int], ExplanationStep]]:
    for stage, step in found.recorded:
        yield (STAGES.index(stage), (step.at_ms or 0) * 1000), step


def _published(found: Evidence) -> Iterator[ExplanationStep]:
    for node, row in found.published:
        waits = f"; it waits for {', '.join(row.waits_for)}" if row.waits_for else ""
        age = f" for {span(row.age_s)}" if row.age_s is not None else ""
        what = "is not released by its publisher" if row.state == "unreleased" else f"is not answered{age}{waits}"
        yield ExplanationStep(
            node, "unfinished", f"packet {row.packet} of {row.client_id!r} {what}", facts={"packet": row.packet}
        )


def _kept(found: Evidence) -> Iterator[ExplanationStep]:
    for node, client_id, row, before in found.queued:
        verb = "is" if before == 1 else "are"
        behind = f", behind {count(before, 'entry', 'entries')} that {verb} not acknowledged" if before else ""
        sent = {"sent": "sent and not acknowledged", "released": "released, PUBCOMP lacks"}.get(row.state or "")
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
    for node, kept in found.retained:
        yield ExplanationStep(
            node, "retained", f"it is the retained message of {kept.topic!r} in partition {kept.partition}"
        )


def _noted(found: Evidence) -> Iterator[ExplanationStep]:
    for node, entry in found.journal:
        of = f" for {entry.client_id!r}" if entry.client_id else ""
        more = f" ({entry.detail})" if entry.detail else ""
        yield ExplanationStep(node, entry.event or "", f"{entry.event}{of}: {entry.reason}{more}", entry.at_ms)


def _finished(found: Evidence) -> Iterator[ExplanationStep]:
    for node, client_id, seq, acknowledged_at_ms, connected_at_ms in found.finished:
        facts = {"client_id": client_id, "seq": seq}
        if acknowledged_at_ms is None:
            newer = f"; the connection that is there came at {clock(connected_at_ms)}" if connected_at_ms else ""
            why = f"entry {seq} of {client_id!r} is not in its queue: it was acknowledged, or dropped{newer}"
            yield ExplanationStep(node, "finished", why, None, facts)
        elif connected_at_ms is not None and connected_at_ms > acknowledged_at_ms:
            later_s = (connected_at_ms - acknowledged_at_ms) / 1000
            why = f"{client_id!r} acknowledged it over an earlier connection; this one came {span(later_s)} later"
            yield ExplanationStep(node, "earlier_connection", why, connected_at_ms, facts)
