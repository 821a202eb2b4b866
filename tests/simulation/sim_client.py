"""An MQTT client of the simulation: ``stratamq/history/client_record.py`` on a simulated stream.

``workload.py`` defines the programs.
"""

from mqtt.client_session import Event, PublishReceived, Timer
from stratamq.history.client_record import ClientOptions, ClientRecord
from stratamq.history.writer import HistoryWriter
from tests.simulation.network import Endpoint
from tests.simulation.process import Process, World

__all__ = ["ClientOptions", "SimClient"]


class SimTransport:
    """One connection's transport over the simulated network."""

    def __init__(self, client: "SimClient") -> None:
        self._client = client
        self._end: Endpoint | None = None

    def send(self, data: bytes) -> None:
        """Send; do nothing before the stream is open."""
        if self._end is not None:
            self._end.send(data)

    def start(self, timer: Timer) -> None:
        """Call when the timer is due."""
        self._client.world.scheduler.at(timer.due, self._due, timer)

    def close(self, *, abort: bool) -> None:
        """Close the stream, or break it."""
        end, self._end = self._end, None
        if end is not None:
            (end.abort if abort else end.close)()

    def connected(self, end: Endpoint | None) -> None:
        """Process the result of a connection attempt."""
        if end is None:
            self._client.lost(self, "refused")
        elif not self._client.is_on(self):
            end.close()
        else:
            self._end = end
            end.notify = self._read
            self._client.opened(self)

    def _read(self) -> None:
        end = self._end
        if end is None:
            return
        data = end.read()
        if data:
            self._client.arrived(self, data)
        if end.reset or (end.eof and not end.inbox):
            self._client.lost(self, in_order=not end.reset)

    def _due(self, timer: Timer) -> None:
        if timer is self._client.session.timer:
            self._client.time_passed(self)


class SimClient(Process, ClientRecord):
    """One program with one client identifier."""

    def __init__(
        self, world: World, writer: HistoryWriter, process: str, client_id: str, options: ClientOptions
    ) -> None:
        Process.__init__(self, world, process)
        scheduler = world.scheduler
        ClientRecord.__init__(
            self, writer, lambda: scheduler.now, lambda: int(scheduler.now * 1_000_000_000), process, client_id, options
        )
        self.up = True
        self.target = ""
        self.received: list[str] = []  # delivered payloads
        self.acknowledging = True  # False: reads and answers nothing, for scripts

    # -- requests

    def connect(self, address: str, options: ClientOptions | None = None) -> None:
        """Make one attempt; ``_accepted`` or ``_closed`` follows."""
        self.drop()
        if options is not None:
            self.options = options
        self.target = address
        way = SimTransport(self)
        self._begin(address, way)
        self.world.network.connect(self.host, address, self.session.next_deadline() - self.now(), way.connected)
        self._flush()

    def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> bool:
        """Send if connected and the window has space; otherwise return False."""
        if not (self.has_room if qos else self.connected):
            return False
        self._publish(topic, payload, qos, retain)
        return True

    def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT; the broker closes after reading it."""
        if self.connected:
            self._send_disconnect(reason_code)

    @property
    def busy(self) -> bool:
        """Whether an answer is pending."""
        connecting = self._attempt is not None and self._attempt.phase is None
        return bool(self._publishes or self._requests or connecting)

    @property
    def trying(self) -> bool:
        """Whether a connection or an attempt exists."""
        return self._attempt is not None

    @property
    def asking(self) -> bool:
        """Whether a SUBACK or UNSUBACK is pending."""
        return bool(self._requests)

    @property
    def publishing(self) -> bool:
        """Whether a PUBACK or PUBREC is pending."""
        return bool(self._publishes)

    # -- callbacks of the record

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:  # noqa: ARG002
        self.received.append(payload)

    def _take(self, event: Event) -> None:
        if self.acknowledging or not (isinstance(event, PublishReceived) and event.packet.qos):
            super()._take(event)
