"""Events of a federation agent and the effects of its steps: the doors of its core.

Plain data; ``gateways/federation/agent.py`` decides. Decision: docs/adr/0086-federation.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from gateways.spool_rows import Write
from mqtt.properties import Properties

__all__ = [
    "MARKER_PREFIX",
    "SPOOL_KINDS",
    "AckHost",
    "AgentSettings",
    "CaptureFilter",
    "Captured",
    "CloseLink",
    "DropNeighbour",
    "Effect",
    "Event",
    "FederationLinkDown",
    "FederationLinkUp",
    "FederationReady",
    "HoldLink",
    "HostAcked",
    "HostDown",
    "HostUp",
    "Inject",
    "InterestChanged",
    "Log",
    "MarkerSeen",
    "NeighbourFrame",
    "NeighbourPolicy",
    "Recapture",
    "Send",
    "SpoolMismatch",
]

MARKER_PREFIX = "stratamq-federate/"  # the marker of an agent is published to <prefix><agent>/marker
SPOOL_KINDS = (
    "agent",
    "message",
    "settled",
    "seen",
    "topic",
    "capture",
    "register",
    "echo",
)  # of the core; all come back


class SpoolMismatch(Exception):
    """The spool's rows are of another federation or agent, or cannot be read; the text is for the operator."""


class AgentSettings(Struct, frozen=True):
    """Facts and bounds of one agent; conf/federate_settings.py has their defaults.

    Attributes:
        federation, agent: As the certificate names them.
        addresses: Where others may dial, for people.
        hello_s, announce_s: Intervals of hl, and of fd, ca, tc and ts.
        missed: Intervals without a word after which a neighbour is down, or an agent gone.
        election_step_ms, election_wait_ms_max: An agent waits its rank times the step before it announces itself as
            core, at most so long.
        early_ms: How long a message waits for the one before it.
        has_no_local: The broker does not send a connection its own messages: MQTT 5, or level 0x84 of 3.1.1. Without
            it echoes are counted.
        has_identifiers: The broker has subscription identifiers; without them a new capture set has another lane.
        unkept_max: Messages sent to one neighbour and not kept by it.
        kept_timeout_s: A neighbour that keeps nothing for so long is passed by.
        host_window: Messages handed to the broker and not acknowledged.
    """

    federation: str
    agent: str
    addresses: tuple[str, ...] = ()
    redundancy: int = 2
    hello_s: float = 1.0
    announce_s: float = 5.0
    missed: int = 3
    election_step_ms: int = 100
    election_wait_ms_max: int = 500
    early_ms: int = 200
    hold_s: float = 86_400.0
    dedup_s: float = 3_600.0
    dedup_ids_max: int = 1_000_000
    spool_bytes_max: int = 1 << 30
    deletions_s: float = 86_400.0
    echo_s: float = 10.0
    has_no_local: bool = True
    has_identifiers: bool = True
    unkept_max: int = 1_024
    kept_timeout_s: float = 10.0
    host_window: int = 1_024
    topics_max: int = 100_000
    registers_max: int = 100_000


class NeighbourPolicy(Struct, frozen=True):
    """Policy for one neighbour.

    Attributes:
        imports, exports: Filters; only topics that one of them matches come from it, or go to it.
        messages_per_s, bytes_per_s: Of what it sends, and of the messages that it is sent.
        interests_max: Federated filters that are learned through it.
    """

    imports: tuple[str, ...] = ("#",)
    exports: tuple[str, ...] = ("#",)
    messages_per_s: float = 10_000.0
    bytes_per_s: float = 64.0 * 1024 * 1024
    interests_max: int = 10_000


# --- from the broker


class Captured(NamedTuple):
    """A PUBLISH of a captured filter came from the broker.

    Attributes:
        ref: For ``AckHost``; 0 at QoS 0. It outlives the connection: while the core has not acknowledged it, the
            session does not hand the message over again, and answers when the broker sends it again.
        identifiers: Subscription identifiers; a broker without them tells none, and the lane tells filters apart.
        lane: 0; 1 for the second connection of a broker without subscription identifiers.
    """

    ref: int
    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    properties: Properties
    identifiers: tuple[int, ...]
    lane: int = 0


class MarkerSeen(NamedTuple):
    """A PUBLISH on the agent's marker topic came back; its payload is the number of ``Recapture`` in decimals."""

    ref: int
    number: int
    lane: int = 0


class HostAcked(NamedTuple):
    """The broker took an ``Inject`` (PUBACK, or the first PUBREC), or refused it; at QoS 0 it is not told."""

    ref: int
    is_refused: bool = False


class HostUp(NamedTuple):
    """The session with the broker stands: CONNACK came, and this is told before any ``Captured`` of it.

    ``is_present`` is Session Present. A session that is present resends by itself what was injected and not answered;
    otherwise the core injects it again, with the same refs. A core that begins injects all that the broker owes, and
    the shell ignores refs that its restored session has open.
    """

    is_present: bool


class HostDown(NamedTuple):
    """The connection to the broker ended."""


class InterestChanged(NamedTuple):
    """Filters that clients of the broker began to want, or stopped; by an adapter, as doubt goes: for wanting.

    The adapter keeps its own rows; after a start it tells all filters once. Filters of shared subscriptions come
    without their share.
    """

    added: Mapping[str, int]  # filter to the highest QoS
    removed: tuple[str, ...] = ()


# --- from neighbours and the operator


class FederationLinkUp(NamedTuple):
    """A link stands.

    Attributes:
        neighbour: The agent that the certificate names.
        incarnation: Of its process.
        is_resumed: The frames between these two incarnations go on where they were: no frame was lost. A shell gives
            a link up whose connection was away for 60 s: ages of messages do not count what they wait there.
        link: The shell's number of the link, another one whenever ``is_resumed`` is false; ``Send`` has it.
    """

    neighbour: str
    incarnation: int
    is_resumed: bool
    policy: NeighbourPolicy
    link: int = 0


class FederationLinkDown(NamedTuple):
    """The connection of a link ended."""

    neighbour: str


class NeighbourFrame(NamedTuple):
    """A frame of a neighbour, once and in order: the bytes of one message."""

    neighbour: str
    data: bytes


class DropNeighbour(NamedTuple):
    """The operator gives an agent up: what is kept for it is dropped, here and everywhere."""

    agent: str


Event: TypeAlias = (
    Captured
    | MarkerSeen
    | HostAcked
    | HostUp
    | HostDown
    | InterestChanged
    | FederationLinkUp
    | FederationLinkDown
    | NeighbourFrame
    | DropNeighbour
)

# --- effects


class Send(NamedTuple):
    """Bytes of one message for a neighbour, in this order.

    A shell drops one whose ``link`` is not the present one: the step waited for its commit, and another link began.
    """

    neighbour: str
    data: bytes
    link: int = 0


class HoldLink(NamedTuple):
    """Read nothing from a neighbour until then: it has used its ceilings."""

    neighbour: str
    until: float


class CloseLink(NamedTuple):
    """Close a neighbour's link, which broke the rules."""

    neighbour: str
    reason: str


class AckHost(NamedTuple):
    """Acknowledge a ``Captured`` or ``MarkerSeen`` (PUBACK, PUBREC)."""

    ref: int


class CaptureFilter(NamedTuple):
    """A subscription of the agent: QoS 2, Retain As Published.

    Attributes:
        identifier: Subscription identifier, where the broker has those; otherwise ``lane`` names the connection.
        no_local: False for the marker alone, which must come back.
        wants_retained: Retain Handling 0, otherwise 2.
    """

    filter: str
    identifier: int
    no_local: bool = True
    wants_retained: bool = True
    lane: int = 0


class Recapture(NamedTuple):
    """Change the agent's subscriptions.

    UNSUBSCRIBE, then SUBSCRIBE; when every SUBACK has granted them, publish ``marker`` (0: none) in decimals to the
    marker topic at QoS 2. A refused filter ends the agent with one line. Requests that a connection's end left
    unanswered are not repeated by the shell: the core asks again after ``HostUp``.
    """

    subscribe: tuple[CaptureFilter, ...]
    unsubscribe: tuple[tuple[str, int], ...]  # filter and lane
    marker: int = 0


class Inject(NamedTuple):
    """A message for the broker; ``ref`` outlives the process (0 at QoS 0), and ``HostAcked`` has it.

    ``lane`` is the connection that gets none of its own messages back: that of the filters that stand.
    """

    ref: int
    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    properties: Properties
    lane: int = 0


class Log(NamedTuple):
    """An event for the log, with its values."""

    event: str
    values: dict[str, str | float]


Effect: TypeAlias = Send | HoldLink | CloseLink | AckHost | Recapture | Inject | Log


class FederationReady(Struct):
    """Work for the shell after a step.

    Attributes:
        writes: For the spool, one transaction. It is durable before any of the effects is performed; rows of the
            broker's session that acknowledging or sending changes join it.
        effects: In this order, after the effects of earlier steps.
        deadline: When to call ``handle`` without events.
    """

    writes: list[Write] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    deadline: float = 0.0
