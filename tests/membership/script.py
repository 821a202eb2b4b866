"""The language of the text scripts: one command per line, ``#`` starts a comment. Each command is one method below."""

from membership.events import LeaveRequested, NodeLeave
from tests.membership.network import Simulation

__all__ = ["Script"]


class Script:
    """Runs one script on a simulation; a failed expectation raises AssertionError with the line."""

    def __init__(self, text: str, seed: int = 1) -> None:
        self._lines = [line.partition("#")[0].split() for line in text.splitlines()]
        self._seed = seed
        self._simulation: Simulation
        self._incarnations: dict[int, int] = {}

    def run(self) -> None:
        """Execute all lines."""
        for number, words in enumerate(self._lines, 1):
            if words:
                try:
                    getattr(self, f"_do_{words[0]}")(*words[1:])
                except AssertionError as error:
                    raise AssertionError(f"line {number}: {' '.join(words)}: {error}") from None

    @staticmethod
    def _number(name: str) -> int:
        return int(name[1:])

    def _set(self, names: str) -> set[int]:
        return {self._number(name) for name in names.split(",")}

    def _do_members(self, count: str) -> None:
        """Start n000.. and let them settle."""
        self._simulation = Simulation(self._seed, int(count))
        self._simulation.run(1.5)
        assert self._simulation.run_until_converged(20) < 20
        self._simulation.run(12)
        self._simulation.events.clear()

    def _do_run(self, seconds: str) -> None:
        self._simulation.run(self._simulation.now + float(seconds))

    def _do_kill(self, name: str) -> None:
        self._simulation.kill(self._number(name))

    def _do_start(self, *names: str) -> None:
        for name in names:
            self._simulation.start(self._number(name))

    def _do_restart(self, name: str) -> None:
        number = self._number(name)
        self._incarnations[number] = self._incarnations.get(number, 1) + (1 << 16)
        self._simulation.start(number, self._incarnations[number])

    def _do_restart_behind(self, name: str) -> None:
        self._simulation.start(self._number(name), 0)

    def _do_block(self, name: str, seconds: str) -> None:
        self._simulation.block(self._number(name), float(seconds))

    def _do_leave(self, name: str) -> None:
        self._simulation.command(self._number(name), LeaveRequested())

    def _do_cut(self, left: str, right: str) -> None:
        self._simulation.cut(self._set(left), self._set(right))

    def _do_oneway(self, source: str, to: str) -> None:
        self._simulation.cut(self._set(source), self._set(to), both_ways=False)

    def _do_heal(self) -> None:
        self._simulation.heal()

    def _do_expect(self, name: str, state: str) -> None:
        """Check that all other running members see a member (or ``all``: each running one) in a state."""
        if name == "all":
            assert self._simulation.converged
            return
        seen = self._simulation.states_of(self._number(name))
        assert set(seen.values()) == {state}, seen

    def _do_expect_by(self, observer: str, name: str, states: str) -> None:
        member = self._simulation.members[self._number(observer)].swim.members.get(name)
        assert member is not None and member.state in states.split(","), member

    def _do_leaves(self, count: str) -> None:
        found = [(when, by, event) for when, by, event in self._simulation.events if isinstance(event, NodeLeave)]
        assert len(found) == int(count), found

    def _do_count(self, counter: str, most: str) -> None:
        found = [member.swim.counters.get(counter, 0) for member in self._simulation.members]
        assert max(found) <= int(most), found

    def _do_health(self, name: str, least: str) -> None:
        score = self._simulation.members[self._number(name)].swim.health.score
        assert score >= int(least), score
