"""At the leader: nodes that may still apply a removed right, for which a verb waits.

A verb is settled at an epoch when every edge and storage incarnation that was live when its command was applied has
acknowledged the epoch, has proved its end, or is certainly silent. Silent means that its lease expired and, for an
edge, also the time for which it may serve its clients without one (``fence_close_s``). Incarnations count separately,
because a new one may start elsewhere while the former one still serves. A leader knows no ends from before its
election, so it assumes that the longest fence time starts there. Sans-IO. Rules: docs/adr/0034; schedules:
docs/revocation.md, part C.
"""

from collections.abc import Mapping

__all__ = ["Incarnation", "PolicySettling"]

Incarnation = tuple[str, int]  # node, incarnation


class PolicySettling:
    """Acknowledged policy epochs of live incarnations, and fence times of silent ones.

    =========  ================================================  ====================================================
    state      holds                                             transition
    =========  ================================================  ====================================================
    live       its last acknowledged epoch                       ``ended`` with proof: removed;
                                                                 ``ended`` without: silent
    silent     its last epoch, and until when it may serve       the fence time expired: removed
    =========  ================================================  ====================================================
    """

    def __init__(self) -> None:
        self._acknowledged: dict[Incarnation, int] = {}
        self._fence_s: dict[Incarnation, float] = {}
        self._silent: dict[Incarnation, tuple[float, int]] = {}  # end of the fence time, and last epoch
        self._unknown_until = float("-inf")  # for ends before the whole map

    def begin(self, now: float, live: Mapping[Incarnation, float], fence_max_s: float) -> None:
        """Start with a whole map, which shows live incarnations but no recent ends; no epoch is acknowledged.

        Args:
            now: At or after the creation of the map. Ends in it may be as late as this.
            live: Every live edge and storage incarnation of the map, with its ``fence_close_s`` (0 for storage).
            fence_max_s: The longest fence time of any edge, dead ones included.
        """
        self._fence_s = dict(live)
        self._silent.clear()
        self._unknown_until = max(self._unknown_until, now + fence_max_s)
        self.elected()

    def elected(self) -> None:
        """Start as the leader, after an entry of its own term, without acknowledgements."""
        self._acknowledged = dict.fromkeys(self._fence_s, 0)

    def admitted(self, incarnation: Incarnation, fence_close_s: float, policy_epoch: int) -> None:
        """Add an incarnation that was registered at a log position with this policy epoch.

        It serves no client before it has that epoch, so this counts as acknowledged. The former incarnation must be
        ended too.
        """
        self._acknowledged[incarnation] = policy_epoch
        self._fence_s[incarnation] = fence_close_s

    def acknowledged(self, incarnation: Incarnation, policy_epoch: int) -> None:
        """Record the epoch of a heartbeat; one of an incarnation that is not live is ignored."""
        known = self._acknowledged.get(incarnation)
        if known is not None:
            self._acknowledged[incarnation] = max(known, policy_epoch)

    def ended(self, now: float, incarnation: Incarnation, *, proved: bool) -> None:
        """Record that an incarnation is dead in the map, or was replaced.

        Args:
            now: At or after the certain end of its lease; any time from the commit of its end on is valid.
            proved: It announced its end, or the lock of its data folder proved it.
        """
        self._sweep(now)
        known = self._acknowledged.pop(incarnation, None)
        if known is None:
            return
        fence_s = self._fence_s.pop(incarnation)
        if not proved and fence_s > 0:
            self._silent[incarnation] = now + fence_s, known

    def may_forget(self, now: float, node: str) -> bool:
        """Return whether the map may remove a dead node: none of its incarnations can still serve."""
        self._sweep(now)
        return now >= self._unknown_until and all(name != node for name, _ in self._silent)

    def awaited(self, now: float, epoch: int) -> list[str]:
        """Return nodes that may still apply an earlier epoch, one line each; empty: the verb is settled."""
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
        """Return the end of the next fence time, infinity if none is pending."""
        times = (self._unknown_until, *(until for until, _ in self._silent.values()))
        return min((until for until in times if until > now), default=float("inf"))

    def _sweep(self, now: float) -> None:
        for incarnation in [silent for silent, (until, _) in self._silent.items() if until <= now]:
            del self._silent[incarnation]
