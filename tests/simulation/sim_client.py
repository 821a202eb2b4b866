"""An MQTT client of the simulation: ``stratamq/history/client_record.py`` on a virtual connection.

Owns the connection and its timeouts; what the program does is in ``workload.py``.
"""

from collections.abc import Callable

from mqtt.client_session import Event, Received, Timer
from stratamq.history.client_record import ClientOptions, ClientRecord, PendingOperation
from stratamq.history.operations import Kind, Phase
from stratamq.history.writer import HistoryWriter
from tests.simulation.network import Endpoint
from tests.simulation.process import Process, World

__all__ = ["ClientOptions", "SimClient"]


class SimClient(Process, ClientRecord):
    """One program with one client identifier."""

    def __init__(
        self, world: World, writer: HistoryWriter, process: str, client_id: str, options: ClientOptions
    ) -> None:
        Process.__init__(self, world, process)
        ClientRecord.__init__(self, writer, process, client_id, options)
        self.up = True
        self.target = ""
        self.on_connected: Callable[[], None] = lambda: None
        self.on_ended: Callable[[], None] = lambda: None
        self.on_receive: Callable[[str, str, bool], None] = lambda *_: None
        self.on_answer: Callable[[Kind, Phase], None] = lambda *_: None
        self.received: list[str] = []  # payloads handed over
        self.acknowledging = True  # False: reads and answers nothing, for scripts
        self._end: Endpoint | None = None

    # -- time

    def now(self) -> float:
        """Return the time of the session's timers: this program's clock is the world's."""
        return self.world.scheduler.now

    def now_ns(self) -> int:
        """Return the time of the history's next line."""
        return int(self.world.scheduler.now * 1_000_000_000)

    def turn(self) -> None:
        """Take what arrived."""
        end = self._end
        if end is None:
            return
        data = end.read()
        if data:
            self._arrived(data)
        if self._end is end and (end.reset or (end.eof and not end.inbox)):
            self._close("peer", in_order=not end.reset)

    def _timer_started(self, timer: Timer) -> None:
        self.world.scheduler.at(timer.due, self._call, self.life, self._timer_due, (timer,))

    def _timer_due(self, timer: Timer) -> None:
        if timer is self.session.timer:
            self._time_passed()

    # -- requests

    def connect(self, address: str, options: ClientOptions | None = None) -> None:
        """Make one attempt; ``on_connected`` or ``on_ended`` follows."""
        self.drop()
        if options is not None:
            self.options = options
        self.target = address
        attempt = self._begin(address)
        assert self.session.timer is not None
        patience_s = self.session.timer.due - self.now()
        self.world.network.connect(self.host, address, patience_s, lambda end: self._opened(attempt, end))
        self._flush()

    def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> bool:
        """Send when connected and the window has room; False otherwise: nothing was done."""
        if not (self.has_room if qos else self.connected):
            return False
        self._publish(topic, payload, qos, retain)
        return True

    def disconnect(self, reason_code: int = 0) -> None:
        """Send DISCONNECT; the broker's close says that it was read."""
        if self.connected:
            self._say_goodbye(reason_code)

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        connecting = self._attempt is not None and self._attempt.phase is None
        return bool(self._publishes or self._requests or connecting)

    @property
    def trying(self) -> bool:
        """Whether there is a connection, or an attempt at one."""
        return self._attempt is not None

    @property
    def asking(self) -> bool:
        """Whether a SUBACK or UNSUBACK is awaited."""
        return bool(self._requests)

    @property
    def publishing(self) -> bool:
        """Whether a PUBACK or PUBREC is awaited."""
        return bool(self._publishes)

    def begin_read(self, topic: str) -> int:
        """Write down that the retained value of a topic is being read."""
        return self.writer.invoke(self.now_ns(), Kind.READ, topic=topic, **self._who())

    def end_read(self, operation: int, phase: Phase, payload: str) -> None:
        """Write down what was read."""
        self.writer.complete(self.now_ns(), phase, Kind.READ, operation, payload=payload, **self._who())

    # -- what the record asks for

    def _write(self, data: bytes) -> None:
        if self._end is not None:
            self._end.send(data)

    def _accepted(self) -> None:
        self.on_connected()

    def _handed_over(self, topic: str, payload: str, retain: bool) -> None:
        self.received.append(payload)
        self.on_receive(topic, payload, retain)

    def _answered(self, kind: Kind, phase: Phase) -> None:
        self.on_answer(kind, phase)

    def _take(self, event: Event) -> None:
        if self.acknowledging or not (isinstance(event, Received) and event.packet.qos):
            super()._take(event)

    # -- the connection

    def _opened(self, attempt: PendingOperation, end: Endpoint | None) -> None:
        if attempt is not self._attempt:
            if end is not None:
                end.close()
            return
        if end is None:
            self._close("refused")
            return
        self._end = end
        end.notify = self.turn
        self._open()

    def _close(self, reason: str, *, in_order: bool = False) -> None:
        """End the connection, once."""
        if self._attempt is None:
            return
        end, self._end = self._end, None
        if end is not None:
            if reason == "local" and not in_order:
                end.abort()
            else:
                end.close()
        self._ended(reason, in_order=in_order)
        self.on_ended()
