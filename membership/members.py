"""The table of members, with their states, sessions and addresses.

Decides the order of probing (every member once per round, new members at a random position: SWIM section 4.3) and picks
random members. ``member_states.py`` decides the states.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from membership.metadata import NodeMetadata
from membership.packets import Address, Alive
from membership.replay import ReplayWindow

__all__ = ["Member", "MemberState", "MemberView", "Members"]

MemberState = Literal["alive", "suspect", "dead", "left"]


@dataclass(slots=True, eq=False)
class Member:
    """One member in the local view."""

    alive: Alive  # its newest description
    state: MemberState
    incarnation: int  # may exceed alive.incarnation when a suspicion of a newer one arrived first
    since: float  # of the state, on the core's clock
    encoded: bytes  # alive, encoded once
    replay: ReplayWindow = field(default_factory=ReplayWindow)

    @property
    def name(self) -> str:
        """The member's name."""
        return self.alive.metadata.name

    @property
    def session(self) -> int:
        """The session of its process."""
        return self.alive.session

    @property
    def address(self) -> Address:
        """Address of its gossip socket."""
        return (self.alive.host, self.alive.port)

    @property
    def live(self) -> bool:
        """Alive or suspect: it is probed and gossiped to."""
        return self.state in ("alive", "suspect")


@dataclass(frozen=True, slots=True)
class MemberView:
    """A copy of a member for services and operators."""

    name: str
    state: MemberState
    incarnation: int
    address: Address
    metadata: NodeMetadata
    since: float  # seconds on the clock of ``now``; when the state began here
    is_self: bool = False


class Members:
    """All members except the local one, by name and by session."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._by_name: dict[str, Member] = {}
        self._by_session: dict[int, Member] = {}
        self._round: list[str] = []  # probe order, taken from the end
        self._gossip_round: list[str] = []
        self._live: tuple[Member, ...] | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Member | None:
        """Return the member of that name."""
        return self._by_name.get(name)

    def by_session(self, session: int) -> Member | None:
        """Return the member whose present process has this session."""
        return self._by_session.get(session)

    def all(self) -> list[Member]:
        """Return all members, sorted by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    @property
    def live(self) -> tuple[Member, ...]:
        """Alive and suspect members, sorted by name."""
        if self._live is None:
            self._live = tuple(member for member in self.all() if member.live)
        return self._live

    @property
    def live_count(self) -> int:
        """N of the formulas: live members, ourselves included."""
        return len(self.live) + 1

    def add(self, member: Member) -> None:
        """Add an unknown member, at a random position of the current rounds."""
        self._by_name[member.name] = member
        self._by_session[member.session] = member
        for names in (self._round, self._gossip_round):
            names.insert(self._rng.randint(0, len(names)), member.name)
        self._live = None

    def replace_alive(self, member: Member, alive: Alive, encoded: bytes) -> None:
        """Replace a member's description; a new session is a new process with its own packet numbers."""
        if alive.session != member.session:
            self._by_session.pop(member.session, None)
            self._by_session[alive.session] = member
            member.replay = ReplayWindow()
        member.alive = alive
        member.encoded = encoded
        member.incarnation = alive.incarnation

    def set_state(self, member: Member, state: MemberState, now: float) -> None:
        """Record a state."""
        if member.state != state:
            member.state = state
            member.since = now
            self._live = None

    def remove(self, member: Member) -> None:
        """Remove a member."""
        del self._by_name[member.name]
        self._by_session.pop(member.session, None)
        self._live = None

    def next_to_probe(self) -> Member | None:
        """Return the next live member of the round; a finished round is shuffled again (SWIM section 4.3)."""
        return self._next(self._round)

    def next_to_gossip(self, count: int) -> list[Member]:
        """Return the next live members of the gossip round, up to ``count``, none twice.

        Rounds instead of random choices: among few members, N - 1 transmissions then reach all of them.
        """
        chosen: list[Member] = []
        for _ in range(min(count, len(self.live))):
            member = self._next(self._gossip_round)
            if member is not None and member not in chosen:
                chosen.append(member)
        return chosen

    def _next(self, names: list[str]) -> Member | None:
        for _ in range(2):
            while names:
                member = self._by_name.get(names.pop())
                if member is not None and member.live:
                    return member
            names.extend(member.name for member in self.live)
            self._rng.shuffle(names)
        return None

    def sample(self, count: int, *, but: str = "", unsuspected: bool = False) -> list[Member]:
        """Return up to ``count`` random live members.

        Args:
            count: Maximum number, 0 or more.
            but: A name to leave out.
            unsuspected: Only alive members without suspicion, as required for relays.
        """
        pool = [member for member in self.live if member.name != but and not (unsuspected and member.state != "alive")]
        return self._rng.sample(pool, min(count, len(pool)))
