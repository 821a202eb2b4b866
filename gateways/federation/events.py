"""Events of a federation agent and the effects of its steps: the interface of its core.

Plain data for ``gateways/federation/agent.py``. Decision: docs/adr/0086-federation.md.
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

MARKER_PREFIX = "stratamq-federate/"  # an agent's marker topic is <prefix><agent>/marker
SPOOL_KINDS = (
    "agent",
    "message",
    "settled",
    "seen",
    "topic",
    "capture",
    "register",
    "echo",
)  # of the core; all are loaded at start


class SpoolMismatch(Exception):
    """The spool's rows are of another federation or agent, or unreadable; the text is for the operator."""


class AgentSettings(Struct, frozen=True):
    """Identity and bounds of one agent; conf/federate_settings.py has the defaults.

    Attributes:
      federation, agent: As in the certificate.
      addresses: Advertised addresses, for operators.
      hello_s, announce_s: Intervals of hl, and of fd, ca, tc and ts.
      missed: Silent intervals after which a neighbour is down, or an agent is removed.
      election_step_ms, election_wait_ms_max: An agent waits its rank times the step, up to the maximum, before it
          becomes
        core.
      early_ms: Wait of a message for the previous one of its topic.
      has_no_local: The broker does not return a connection's own messages: MQTT 5, or level 0x84 of 3.1.1. Otherwise
        echoes are counted.
      has_identifiers: The broker supports subscription identifiers; otherwise a new capture set uses another
          connection.
      unkept_max: Messages in flight to one neighbour.
      kept_timeout_s: A neighbour that acknowledges nothing for this long is distrusted.
      host_window: Messages in flight to the broker.
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
      imports, exports: Filters of topics that may be received from it, or sent to it.
      messages_per_s, bytes_per_s: Rate limits of each direction.
      interests_max: Federated filters learned through it.
    """

    imports: tuple[str, ...] = ("#",)
    exports: tuple[str, ...] = ("#",)
    messages_per_s: float = 10_000.0
    bytes_per_s: float = 64.0 * 1024 * 1024
    interests_max: int = 10_000


# --- from the broker


class Captured(NamedTuple):
    """The broker sent a PUBLISH for a captured filter.

    Attributes:
      ref: For ``AckHost``; 0 at QoS 0. It survives the connection: until the core acknowledges it, the session passes
          no
        redelivery on.
      identifiers: Subscription identifiers; empty without support, then ``connection`` distinguishes filters.
      connection: Number of the connection: 0; 1 for the second one of a broker without subscription identifiers.
    """

    ref: int
    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    properties: Properties
    identifiers: tuple[int, ...]
    connection: int = 0


class MarkerSeen(NamedTuple):
    """The broker returned the marker; its payload is the number of ``Recapture`` in decimals."""

    ref: int
    number: int
    connection: int = 0


class HostAcked(NamedTuple):
    """The broker accepted an ``Inject`` (PUBACK, or the first PUBREC), or refused it; not sent at QoS 0."""

    ref: int
    is_refused: bool = False


class HostUp(NamedTuple):
    """The session with the broker is connected; precedes each ``Captured`` of it.

    ``is_present`` is Session Present. A present session resends unanswered publishes by itself; otherwise the core
    injects them again, with the same refs. A starting core injects all messages owed to the broker. The shell ignores
    refs that are open in its restored session.
    """

    is_present: bool


class HostDown(NamedTuple):
    """The connection to the broker ended."""


class InterestChanged(NamedTuple):
    """Changed filters of the broker's clients, from an adapter; in doubt a filter counts as wanted.

    The adapter keeps its own rows; after a start it reports all filters once. Filters of shared subscriptions come
    without their share name.
    """

    added: Mapping[str, int]  # filter to the highest QoS
    removed: tuple[str, ...] = ()


# --- neighbours and operator


class FederationLinkUp(NamedTuple):
    """A link is connected.

    Attributes:
      neighbour: The agent named in the certificate.
      incarnation: Of its process.
      is_resumed: The frame sequence of these two incarnations continues: no frame was lost. A shell resets a link after
        60 s without a connection, since message ages do not include that time.
      link: The shell's number of the link; new whenever ``is_resumed`` is false. ``Send`` carries it.
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
    """The operator removes an agent: its messages are dropped at all agents."""

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
    """Bytes of one message for a neighbour, in order.

    A shell drops it if ``link`` is not the present one: a new link started during the commit of the step.
    """

    neighbour: str
    data: bytes
    link: int = 0


class HoldLink(NamedTuple):
    """Pause reading from a neighbour until a time: it exceeded its rate limits."""

    neighbour: str
    until: float


class CloseLink(NamedTuple):
    """Close the link of a neighbour that violated the protocol."""

    neighbour: str
    reason: str


class AckHost(NamedTuple):
    """Acknowledge a ``Captured`` or ``MarkerSeen`` (PUBACK, PUBREC)."""

    ref: int


class CaptureFilter(NamedTuple):
    """A subscription of the agent: QoS 2, Retain As Published.

    Attributes:
      identifier: Subscription identifier, if supported; otherwise ``connection`` selects the connection.
      no_local: False only for the marker, which must be returned.
      wants_retained: Retain Handling 0, otherwise 2.
    """

    filter: str
    identifier: int
    no_local: bool = True
    wants_retained: bool = True
    connection: int = 0


class Recapture(NamedTuple):
    """Change the agent's subscriptions.

    UNSUBSCRIBE, then SUBSCRIBE; after all SUBACKs publish ``marker`` (0: none) in decimals to the marker topic at QoS
    2. A
    refused filter ends the agent with one line. The shell does not repeat requests after a disconnection: the core
    repeats
    them after ``HostUp``.
    """

    subscribe: tuple[CaptureFilter, ...]
    unsubscribe: tuple[tuple[str, int], ...]  # filter and connection
    marker: int = 0


class Inject(NamedTuple):
    """A message for the broker; ``ref`` survives the process (0 at QoS 0), and ``HostAcked`` carries it.

    ``connection`` is the connection of the granted filters, which does not receive its own messages.
    """

    ref: int
    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    properties: Properties
    connection: int = 0


class Log(NamedTuple):
    """A log event, with its values."""

    event: str
    values: dict[str, str | float]


Effect: TypeAlias = Send | HoldLink | CloseLink | AckHost | Recapture | Inject | Log


class FederationReady(Struct):
    """Output of a step, for the shell.

    Attributes:
      writes: For the spool, one transaction, durable before any effect is performed. Rows of the broker's session that
        acknowledging or sending changes join it.
      effects: In this order, after the effects of earlier steps.
      deadline: When to call ``handle`` without events.
    """

    writes: list[Write] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    deadline: float = 0.0
