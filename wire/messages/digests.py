"""Digests of the map and of the policy: two nodes with one epoch and one digest followed the same steps.

Every step carries the digest of the state before it. The digest after a step is computed from the step's own bytes: it
covers all steps since the first state, and costs as much as the step, whatever the size of the state. It detects two
histories under one epoch (a forged step, a log restored from a backup). It proves nothing against a router of the
group, which writes the history. Rules: docs/protocol.md section 2.
"""

import enum
from collections import OrderedDict
from hashlib import blake2b

__all__ = ["DIGEST_BYTES", "EPOCHS_KEPT", "DigestLog", "Verdict", "digest_of"]

DIGEST_BYTES = 16
EPOCHS_KEPT = 4_096  # steps that a follower may lag and still be compared


def digest_of(data: bytes) -> bytes:
    """Return the digest after a step, or of a first state."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Verdict(enum.Enum):
    """Result of a comparison of a node's epoch and digest with a log."""

    FITS = "the log has had this state"
    UNKNOWN = "older than what is remembered"
    AHEAD = "above the newest epoch of the log"
    OTHER = "another state under an epoch of the log"

    @property
    def contradicts(self) -> bool:
        """Whether no steps of this log lead to the compared state."""
        return self in (Verdict.AHEAD, Verdict.OTHER)


class DigestLog:
    """The newest epochs of a router's state machine, each with its digest."""

    def __init__(self) -> None:
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self.begin(0, b"")

    def begin(self, epoch: int, digest: bytes) -> None:
        """Start with a state whose steps are unknown."""
        self._digests.clear()
        self.note(epoch, digest)

    def note(self, epoch: int, digest: bytes) -> None:
        """Add the state after a step."""
        self._digests[epoch] = digest
        self._newest = epoch
        if len(self._digests) > EPOCHS_KEPT:
            self._digests.popitem(last=False)

    def digest(self, epoch: int) -> bytes:
        """Return the digest of an epoch; empty if it is not stored."""
        return self._digests.get(epoch, b"")

    def verdict(self, epoch: int, digest: bytes) -> Verdict:
        """Compare a node's state with the log; a state without a digest has not been read yet."""
        if not digest and not epoch:
            return Verdict.FITS
        if epoch > self._newest:
            return Verdict.AHEAD
        known = self._digests.get(epoch)
        if known is None:
            return Verdict.UNKNOWN
        return Verdict.FITS if known == digest else Verdict.OTHER
