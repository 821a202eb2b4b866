"""Copies of one message for a session with overlapping subscriptions: the subscriptions of each copy, and its options.

A session gets one copy for each of its Subscription Identifiers. It gets one copy for all matching subscriptions
without one, because the client cannot distinguish them: so MQTT 3.1.1 gets one copy. Subscriptions that an edge granted
as merged share one copy with all identifiers. Ephemeral sessions (edges) and stored sessions (partitions) follow this
one rule. Source: MQTT 5.0 section 3.3.4 [MQTT-3.3.4-2] to [MQTT-3.3.4-5]; MQTT 3.1.1 section 3.3.5.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mqtt.properties import encode_subscription_identifiers
from wire.messages.sessions import SessionSubscription

__all__ = ["COPIES_MAX", "CopyOptions", "identifiers_of", "options_of", "sharing_a_copy"]

COPIES_MAX = 64  # of one message for one session; identifiers beyond it share the last copy
MERGED = -1  # instead of an identifier


class CopyOptions(NamedTuple):
    """Options of one copy: highest QoS of its subscriptions, Retain As Published of any, all their identifiers."""

    qos: int
    retain_as_published: bool
    identifiers: bytes


def sharing_a_copy(subscriptions: Sequence[SessionSubscription]) -> list[list[SessionSubscription]]:
    """Return the matching subscriptions of one session grouped by copy, in their order."""
    groups: dict[int, list[SessionSubscription]] = {}
    for subscription in subscriptions:
        key = MERGED if subscription.merged else subscription.identifier
        group = groups.get(key)
        if group is not None:
            group.append(subscription)
        elif len(groups) < COPIES_MAX:
            groups[key] = [subscription]
        else:
            groups[next(reversed(groups))].append(subscription)
    return list(groups.values())


def options_of(group: Sequence[SessionSubscription]) -> CopyOptions:
    """Return the options of the copy for a group of subscriptions [MQTT-3.3.4-2] [MQTT-3.3.4-4]."""
    return CopyOptions(
        max(subscription.qos for subscription in group),
        any(subscription.retain_as_published for subscription in group),
        identifiers_of(group),
    )


def identifiers_of(group: Sequence[SessionSubscription]) -> bytes:
    """Return the Subscription Identifier properties of a copy, encoded.

    A merged copy has one for each subscription, duplicates included (section 3.3.4).
    """
    identifiers = [subscription.identifier for subscription in group]
    return encode_subscription_identifiers(identifiers if group[0].merged else dict.fromkeys(identifiers))
