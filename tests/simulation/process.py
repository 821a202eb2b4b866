"""One simulated process: lives, iterations of its loop, pauses, and its own boot clock.

Decides when an iteration runs; the tier defines its work (``router_process``, ``storage_process``, ``edge_process``).
An iteration that is due while the process is stopped (SIGSTOP) runs when it resumes. A running one resumes in its
middle, with its earlier clock reading.
"""

from collections.abc import Callable
from typing import Any

from tests.simulation.network import Endpoint, Network
from tests.simulation.scheduler import Scheduler

__all__ = ["Process", "World"]


class World:
    """State shared by all processes of a simulation."""

    def __init__(self, scheduler: Scheduler, network: Network, turn_s: float) -> None:
        self.scheduler = scheduler
        self.network = network
        self.turn_s = turn_s  # duration of one iteration


class Process:
    """A process on its host, over all its lives."""

    tick_max_s = 0.25

    def __init__(self, world: World, host: str, clock_offset_s: float = 0.0) -> None:
        self.world = world
        self.host = host
        self.up = False
        self.paused = False
        self.life = 0
        self._offset = clock_offset_s
        self._rate = 1.0  # of the boot clock
        self._due = float("inf")  # of the earliest requested iteration, on the scheduler's clock
        self._missed = False
        self._stops_at = ""  # a point of an iteration
        self._rest: Callable[[], None] | None = None  # remaining part of the stopped iteration
        self._suspended_at = float("nan")
        self.turns = 0
        world.network.processes[host] = self

    # -- for the network

    def listens(self, port: int) -> bool:
        """Whether a connection to a port is accepted."""
        del port
        return self.up

    def accepted(self, end: Endpoint, port: int) -> None:
        """Accept a connection."""
        raise NotImplementedError

    # -- time

    def clock(self) -> float:
        """Read this host's boot clock, in seconds."""
        return self.world.scheduler.now * self._rate + self._offset

    def drift(self, rate: float) -> None:
        """Change the rate of the boot clock, as for an inaccurate crystal."""
        self._offset += self.world.scheduler.now * (self._rate - rate)
        self._rate = rate

    def overslept(self, seconds: float) -> None:
        """Called after the host was suspended. CLOCK_BOOTTIME advanced meanwhile; another clock might not have."""

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call later in this life; a stopped process is called when it resumes."""
        self.world.scheduler.after(seconds, self._call, self.life, call, arguments)

    def _call(self, life: int, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self.life or not self.up:
            return
        if self.paused:
            self.world.scheduler.after(0.01, self._call, life, call, arguments)
            return
        call(*arguments)

    def poke(self) -> None:
        """Request an iteration soon."""
        self.wake_at(self.world.scheduler.now + self.world.turn_s)

    def wake_by(self, deadline: float) -> None:
        """Request an iteration at a time of this host's clock, or a tick from now, whichever is first."""
        now = self.world.scheduler.now
        soonest, due, latest = now + self.world.turn_s, (deadline - self._offset) / self._rate, now + self.tick_max_s
        if due < soonest:
            due = soonest
        self.wake_at(due if due < latest else latest)

    def wake_at(self, when: float) -> None:
        """Request an iteration at a time of the scheduler's clock."""
        if when < self._due:
            self._due = when
            self.world.scheduler.at(when, self._turn, self.life, when)

    def _turn(self, life: int, when: float) -> None:
        if life != self.life or not self.up or when != self._due:
            return
        if self.paused:
            self._missed = True
            return
        self._due = float("inf")
        self.turns += 1
        self.turn()

    def _go_on(self, life: int, rest: Callable[[], None]) -> None:
        if life == self.life and self.up:
            rest()
            self.poke()

    def turn(self) -> None:
        """One iteration of the process's loop."""
        raise NotImplementedError

    # -- lives

    def begin(self) -> None:
        """Begin a life; the tier has created the cores."""
        self.up = True
        self.paused = False
        self._due = float("inf")
        self._missed = False
        self._stops_at, self._rest = "", None
        self.poke()

    def end(self, *, power: bool = False) -> None:
        """End the life at once: killed, or without power."""
        if self.up:
            self.up = False
            self.life += 1
            self.world.network.ended(self.host, silent=power)
            self.world.scheduler.note(f"{self.host} {'loses power' if power else 'is killed'}")

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True
        self.world.scheduler.note(f"{self.host} stops")

    def pause_within(self, point: str) -> None:
        """SIGSTOP at a point of the next iteration that reaches it."""
        self._stops_at = point

    def stops_here(self, point: str, rest: Callable[[], None]) -> bool:
        """Called at a point of an iteration; True if it stops there, and runs the rest when it resumes."""
        if self._stops_at != point:
            return False
        self._stops_at, self._rest = "", rest
        self.pause()
        return True

    def suspend(self) -> None:
        """Suspend the host."""
        self._suspended_at = self.world.scheduler.now
        self.pause()

    def wake(self) -> None:
        """Wake the host."""
        self.overslept(self.world.scheduler.now - self._suspended_at)
        self.resume()

    def resume(self) -> None:
        """SIGCONT."""
        self._stops_at = ""
        if self.paused:
            self.paused = False
            self.world.scheduler.note(f"{self.host} goes on")
            rest, self._rest = self._rest, None
            if rest is not None:
                self._missed = False
                self._due = float("inf")
                self.world.scheduler.after(0.0, self._go_on, self.life, rest)
            if self._missed:
                self._missed = False
                self._due = float("inf")
                self.poke()
