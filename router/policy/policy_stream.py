"""The policy as a stream: the followers of a router, and the steps or pages for each.

A node with a recent view gets the later steps, and authorizes again only the clients that they affect. Any other node
gets the pages of a whole view and the steps after it. A whole view is encoded at most once a second for all nodes;
later changes are in the stored steps. Sans-IO. Rules: docs/adr/0034.
"""

from collections import deque

from access.policy.machine import PolicyMachine
from access.policy.pages import STEPS_MAX, PolicyPage, PolicyPages
from access.policy.step import PolicyStep, encode_step
from access.policy.view import encode_view
from wire.messages.control import Control, encode_control
from wire.messages.hello import PeerKey
from wire.messages.policy import FollowPolicy, PolicyPaged, PolicyStepped

__all__ = ["PolicyStream"]

STEPS_KEPT = STEPS_MAX  # a follower stores no more steps while it reads pages
STEPS_BYTES_MAX = 16 * 1024 * 1024
ENCODE_EVERY_S = 1.0


class PolicyStream:
    """Followers of one router's policy, the newest steps, and encoded pages."""

    def __init__(self, page_bytes: int) -> None:
        self._followers: dict[str, int] = {}  # node -> incarnation of its link
        self._pages = PolicyPages(page_bytes)
        self._steps: deque[tuple[int, bytes, bytes]] = deque()  # epoch, digest before, message; without gaps
        self._octets = 0
        self._pages_epoch = -1  # epoch of the newest encoded view
        self._encoded_at = float("-inf")

    def follow(
        self, now: float, node: str, incarnation: int, message: FollowPolicy, policy: PolicyMachine
    ) -> list[Control | bytes]:
        """Add a follower, or process its request for a page; return the messages to send, encoded or not.

        Args:
            policy: The current policy. A node with it, or a newer one, gets an empty page. A node whose view is not a
                state of this log gets the whole policy.
        """
        self._followers[node] = incarnation
        epoch = policy.epoch
        if message.page_of >= 0:
            page = self._pages.page(message.page_of, message.offset)
            if page is not None:
                return [_message(page)]
        elif message.epoch > epoch or (message.epoch == epoch and message.digest == policy.digest):
            return [PolicyPaged(epoch, 0, 0, 0, b"")]
        elif (
            self._oldest(epoch) <= message.epoch + 1 <= epoch
            and self._digest_before(message.epoch + 1) == message.digest
        ):
            return self._steps_after(message.epoch)
        return self._first_page(now, policy)

    def link_down(self, peer: PeerKey) -> None:
        """Remove a follower whose link ended, unless a newer incarnation follows."""
        if self._followers.get(peer.node) == peer.incarnation:
            del self._followers[peer.node]

    def step(self, step: PolicyStep) -> list[tuple[str, bytes]]:
        """Return (node, control message) for the next step; encoded once for all nodes."""
        data = encode_control(PolicyStepped(bytes(encode_step(step))))
        self._steps.append((step.epoch, step.before, data))
        self._octets += len(data)
        while len(self._steps) > STEPS_KEPT or self._octets > STEPS_BYTES_MAX:
            _, _, oldest = self._steps.popleft()
            self._octets -= len(oldest)
        return [(node, data) for node in sorted(self._followers)]

    def replaced(self, now: float, policy: PolicyMachine) -> list[tuple[str, Control | bytes]]:
        """Return (node, message) after the whole policy was replaced."""
        self._pages.clear()
        self._steps.clear()
        self._octets, self._pages_epoch, self._encoded_at = 0, -1, float("-inf")
        if not self._followers:
            return []
        first = self._first_page(now, policy)
        return [(node, message) for node in sorted(self._followers) for message in first]

    def _oldest(self, epoch: int) -> int:
        """Return the epoch of the oldest stored step, the next epoch if there is none."""
        return self._steps[0][0] if self._steps else epoch + 1

    def _steps_after(self, epoch: int) -> list[Control | bytes]:
        return [data for at, _, data in self._steps if at > epoch]

    def _digest_before(self, epoch: int) -> bytes:
        """Return the digest before a stored step."""
        return self._steps[epoch - self._steps[0][0]][1]

    def _first_page(self, now: float, policy: PolicyMachine) -> list[Control | bytes]:
        """Return the first page of a whole view, and the steps after it."""
        epoch = policy.epoch
        fresh = self._pages_epoch >= 0 and self._pages_epoch + 1 >= self._oldest(epoch)
        if not fresh or (self._pages_epoch < epoch and now >= self._encoded_at + ENCODE_EVERY_S):
            self._pages.put(epoch, encode_view(epoch, policy.tables, policy.digest))
            self._pages_epoch, self._encoded_at = epoch, now
        page = self._pages.page(self._pages_epoch, 0)
        assert page is not None, "the newest view stays on the shelf"
        return [_message(page), *self._steps_after(self._pages_epoch)]


def _message(page: PolicyPage) -> PolicyPaged:
    return PolicyPaged(page.epoch, page.offset, page.size, page.checksum, page.data)
