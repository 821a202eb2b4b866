"""The wait of a verb that takes rights away: which nodes may still act by the old right, at the leader.

A verb is settled at an epoch when every edge and storage incarnation that lived when its command was applied has
acknowledged the epoch, has proved its end, or is surely silent: its lease is over and, for an edge, so is the time for
which it may serve its own clients without one (``fence_close_s``). Incarnations count one by one, because a new one may
be admitted elsewhere while the former one still serves. A leader knows no end from before its election, so it takes
the longest fence time for running from there. Sans-IO. Rules: docs/adr/0034; schedules: docs/revocation.md, part C.
"""

from collections.abc import Mapping

__all__ = ["Incarnation", "PolicySettling"]

Incarnation = tuple[str, int]  # node, incarnation


class PolicySettling:
    """Acknowledged policy epochs of live incarnations, and fence times of silent ones.

    =========  ================================================  ====================================================
    state      holds                                             way out
    =========  ================================================  ====================================================
    live       its last acknowledged epoch                       ``ended`` with proof: nothing is kept of it;
                                                                 ``ended`` without: silent
    silent     its last epoch, and until when it may serve       the time is over: nothing is kept of it
    =========  ================================================  ====================================================
    """

    def __init__(self) -> None:
        self._acknowledged: dict[Incarnation, int] = {}
        self._fence_s: dict[Incarnation, float] = {}
        self._silent: dict[Incarnation, tuple[float, int]] = {}  # until when, and by which epoch
        self._unknown_until = float("-inf")  # ends of before the whole map

    def begin(self, now: float, live: Mapping[Incarnation, float], fence_max_s: float) -> None:
        """Begin with a whole map, which shows who lives and not who ended lately; nobody has acknowledged anything.

        Args:
            now: Not before the map was there. Ends that are in it may be as late as this.
            live: Every live edge and storage incarnation of the map, with its ``fence_close_s`` (0 of storage).
            fence_max_s: The longest that any edge, dead ones too, may have been told.
        """
        self._fence_s = dict(live)
        self._silent.clear()
        self._unknown_until = max(self._unknown_until, now + fence_max_s)
        self.elected()

    def elected(self) -> None:
        """Begin as the leader, behind an entry of its own term, with no acknowledgement of anybody who lives."""
        self._acknowledged = dict.fromkeys(self._fence_s, 0)

    def admitted(self, incarnation: Incarnation, fence_close_s: float, policy_epoch: int) -> None:
        """Note that an incarnation was registered at a place of the log where the policy had that epoch.

        It serves nobody before it is there, so this counts as acknowledged. The former incarnation has to be ended too.
        """
        self._acknowledged[incarnation] = policy_epoch
        self._fence_s[incarnation] = fence_close_s

    def acknowledged(self, incarnation: Incarnation, policy_epoch: int) -> None:
        """Note what a heartbeat said; one of an incarnation that does not live changes nothing."""
        known = self._acknowledged.get(incarnation)
        if known is not None:
            self._acknowledged[incarnation] = max(known, policy_epoch)

    def ended(self, now: float, incarnation: Incarnation, *, proved: bool) -> None:
        """Note that an incarnation is dead in the map, or has another one in its place.

        Args:
            now: Not before its lease was surely over: any time at or behind the commit of its end is right.
            proved: It said that it is over, or the lock of its data folder did.
        """
        self._sweep(now)
        known = self._acknowledged.pop(incarnation, None)
        if known is None:
            return
        fence_s = self._fence_s.pop(incarnation)
        if not proved and fence_s > 0:
            self._silent[incarnation] = now + fence_s, known

    def may_forget(self, now: float, node: str) -> bool:
        """Return whether the map may forget a dead node: no incarnation of it can serve any more."""
        self._sweep(now)
        return now >= self._unknown_until and all(name != node for name, _ in self._silent)

    def awaited(self, now: float, epoch: int) -> list[str]:
        """Return who may still act by what was before an epoch, one line each; nobody: the verb is settled."""
        self._sweep(now)
        waiting = [
            f"{node} acts by policy epoch {known}"
            for (node, _), known in sorted(self._acknowledged.items())
            if known < epoch
        ]
        for (node, _), (until, known) in sorted(self._silent.items()):
            if known < epoch:
                waiting.append(f"{node} is dead, and may serve its own clients for {until - now:.1f} s")
        if now < self._unknown_until:
            waiting.append(f"nodes that died before this router began, for {self._unknown_until - now:.1f} s")
        return waiting

    def next_deadline(self, now: float) -> float:
        """Return when the next fence time is over, infinity if none runs."""
        times = (self._unknown_until, *(until for until, _ in self._silent.values()))
        return min((until for until in times if until > now), default=float("inf"))

    def _sweep(self, now: float) -> None:
        for incarnation in [silent for silent, (until, _) in self._silent.items() if until <= now]:
            del self._silent[incarnation]
