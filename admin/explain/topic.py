"""Explains the receivers of a topic: owner of its shard, receivers, shared groups, and near misses with reasons."""

from collections.abc import Iterator

from admin.explain.client import MISS_TEXTS
from admin.explain.explanation import Explanation, ExplanationStep
from admin.explain.texts import count
from admin.queries import TopicView
from admin.scatter_gather import MissingRows
from wire.messages.cluster_map import ClusterMap
from wire.messages.topic_rows import MatchRow, ResolvedRouteRow

__all__ = ["explain_topic", "is_full"]


def explain_topic(view: TopicView, cluster_map: ClusterMap, *, publisher: str = "", qos: int = 1) -> Explanation:
    """Explain which clients receive a topic.

    Args:
        view: Results of its owner and of the nodes that may have subscribers.
        cluster_map: For partitions without a primary.
        publisher: Client ID; "": some other client.
        qos: Of the message.
    """
    steps = [*_shard(view)]
    receivers = [*_receivers(view, qos)]
    groups = [*_groups(view)]
    members = [*_members(view, qos)]
    misses = [*_misses(view), *_without_primary(view, cluster_map)]
    steps += [*receivers, *groups, *members, *misses]
    cause = None
    if not receivers and not groups:
        no_receiver = ExplanationStep(view.owner, "nobody", f"nobody gets {view.topic!r}: no subscription meets it")
        cause = next((step for step in misses if step.what != "level"), no_receiver)
        steps += [no_receiver] if cause is no_receiver else []
    if not view.owner:
        cause = steps[0]
    had = [f"the map, shard {view.shard} at {view.owner} now"] if view.resolved is not None else ["the map"]
    answered = sorted({node for node, _ in view.matches})
    if answered:
        had.append(f"subscriptions at {', '.join(answered)} now")
    by = f" of {publisher!r}" if publisher else ""
    takers = count(len(receivers), "subscription") + (f" and {count(len(groups), 'shared group')}" if groups else "")
    return Explanation(
        f"who gets {view.topic!r} at QoS {qos}{by}?",
        steps,
        cause,
        had,
        _lacked(view),
        f"{takers} receive it",
    )


def _lacked(view: TopicView) -> tuple[MissingRows, ...]:
    return tuple(dict.fromkeys(view.partial))


def _shard(view: TopicView) -> Iterator[ExplanationStep]:
    found = view.resolved
    if not view.owner:
        yield ExplanationStep(
            "", "shard", f"shard {view.shard} has no owner: its new topics wait until a router takes it over"
        )
        return
    if found is None:
        return
    key = f" (route key {found.route_key!r})" if found.route_key else ""
    pinned = ", pinned by a delegated prefix" if found.pinned else ""
    missing = f"; it waits for the routes of {', '.join(found.missing)}" if found.missing else ""
    yield ExplanationStep(
        view.owner, "shard", f"shard {view.shard}{key} is owned by {view.owner}{pinned}: {found.state}{missing}"
    )
    yield ExplanationStep(view.owner, "cached", _cached(found))


def _cached(found: ResolvedRouteRow) -> str:
    cached = found.cached_at or []
    text = f"edges that cache its route: {', '.join(cached) or 'none'}"
    if found.invalidating:
        text += f"; {', '.join(found.invalidating)} have not removed an older one yet"
    return text


def _receivers(view: TopicView, qos: int) -> Iterator[ExplanationStep]:
    for node, match in view.matches:
        if match.why or match.share or match.client_id is None:
            continue
        yield ExplanationStep(node, "receiver", _delivery(node, match, qos), facts=_facts(match, qos))


def _delivery(node: str, match: MatchRow, qos: int) -> str:
    """Return how a receiver gets a message: filter, QoS, place, and entries before it."""
    granted, effective = match.qos or 0, _effective(match, qos)
    lowered = f", lowered from {qos}" if effective < qos else f" of {granted} granted" if granted != effective else ""
    where = f"partition {match.partition}" if match.durable else f"its connection at {node}"
    waits = f", behind {count(match.queued, 'entry', 'entries')}" if match.queued else ""
    away = "" if match.online else ", not connected: queued"
    full = f", after it acknowledges one of {match.window}: its window is full" if is_full(match) else ""
    how = f"{match.client_id!r} by {match.filter!r} at QoS {effective}{lowered}"
    return f"{how}, in {where}{waits}{away}{full}{_options(match)}"


def _effective(match: MatchRow, qos: int) -> int:
    return match.effective_qos if match.effective_qos is not None else min(match.qos or 0, qos)


def _facts(match: MatchRow, qos: int) -> dict[str, object]:
    """Return a receiver's fields for programs."""
    return {
        "client_id": match.client_id,
        "filter": match.filter,
        "qos": _effective(match, qos),
        "granted_qos": match.qos,
        "durable": match.durable,
        "no_local": match.no_local,
        "retain_as_published": match.retain_as_published,
        "retain_handling": match.retain_handling,
        "identifier": match.identifier,
    }


def is_full(match: MatchRow) -> bool:
    """Return whether a receiver must acknowledge a message before it gets another one of QoS 1 or 2."""
    return bool(match.window) and match.inflight is not None and match.inflight >= (match.window or 0)


def _options(match: MatchRow) -> str:
    words = [
        *(["No Local"] if match.no_local else []),
        *(["Retain As Published"] if match.retain_as_published else []),
        *([f"Retain Handling {match.retain_handling}"] if match.retain_handling else []),
        *([f"Subscription Identifier {match.identifier}"] if match.identifier else []),
    ]
    return f" ({', '.join(words)})" if words else ""


def _groups(view: TopicView) -> Iterator[ExplanationStep]:
    for (share, topic_filter), members in _shared(view).items():
        takes = [(node, member) for node, member in members if not member.why]
        next_members = [f"{member.client_id!r} {_place_of(node, member)}" for node, member in takes if member.turn]
        choice = "the next one is chosen on arrival"
        if len(next_members) == 1:
            choice = f"the next one is {next_members[0]}"
        elif next_members:
            choice = (
                "the edge of the message alternates between the places; the next members there are "
                f"{', '.join(next_members)}"
            )
        yield ExplanationStep(
            "",
            "group",
            f"one member of group {share!r} on {topic_filter!r}: {len(takes)} of {len(members)} can receive "
            f"it, {choice}",
            facts={"share": share, "filter": topic_filter, "members": [member.client_id for _, member in members]},
        )


def _shared(view: TopicView) -> dict[tuple[str, str], list[tuple[str, MatchRow]]]:
    """Return members with the node of each, by group and filter."""
    groups: dict[tuple[str, str], list[tuple[str, MatchRow]]] = {}
    for node, match in view.matches:
        if match.share and match.client_id is not None:
            groups.setdefault((match.share, match.filter or ""), []).append((node, match))
    return dict(sorted(groups.items()))


def _place_of(node: str, match: MatchRow) -> str:
    return f"in partition {match.partition}" if match.durable else f"at {node}"


def _members(view: TopicView, qos: int) -> Iterator[ExplanationStep]:
    """Yield how each eligible member of a shared group would receive it."""
    for (share, _), members in _shared(view).items():
        for node, match in members:
            if not match.why:
                turn = ", the next one there" if match.turn else ""
                why = f"a member of group {share!r}{turn}: {_delivery(node, match, qos)}"
                yield ExplanationStep(
                    node, "member", why, facts={"share": share, "turn": match.turn, **_facts(match, qos)}
                )


def _misses(view: TopicView) -> Iterator[ExplanationStep]:
    for node, match in view.matches:
        if not match.why:
            continue
        why = MISS_TEXTS.get(match.why, match.why)
        if match.client_id is None:
            yield ExplanationStep(
                node, match.why, f"{match.filter!r} does not match it: {why}", facts={"filter": match.filter}
            )
            continue
        detail = f" ({match.detail})" if match.detail else ""
        yield ExplanationStep(
            node,
            match.why,
            f"{match.client_id!r} does not receive it by {match.filter!r}: {why}{detail}",
            facts={"client_id": match.client_id, "filter": match.filter},
        )


def _without_primary(view: TopicView, cluster_map: ClusterMap) -> Iterator[ExplanationStep]:
    """Yield partitions of the route that have no primary."""
    for number in view.resolved.partitions or () if view.resolved is not None else ():
        if not cluster_map.partitions[number].primary:
            yield ExplanationStep(
                "",
                "no_primary",
                f"partition {number} has subscribers and no primary: its edge keeps QoS 1 and 2 messages until it "
                "has one",
            )
