"""Structure of every explanation: steps in order, the deciding one, and the sources."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from admin.scatter_gather import MissingRows

__all__ = ["Explanation", "ExplanationStep"]


class ExplanationStep(NamedTuple):
    """One condition or event of a node."""

    node: str  # "": none, the map or all
    what: str  # kind: "session", "window", "receiver", "near miss", ...
    why: str  # one sentence, with numbers and the setting's name
    at_ms: int | None = None
    facts: Mapping[str, object] = {}


class Explanation(NamedTuple):
    """An explanation: ``cause`` is the deciding step, None if no problem was found."""

    question: str
    steps: Sequence[ExplanationStep]
    cause: ExplanationStep | None
    had: Sequence[str]
    lacked: Sequence[MissingRows]
    summary: str = ""  # if no problem was found

    @property
    def verdict(self) -> str:
        """The deciding sentence."""
        return self.cause.why if self.cause is not None else self.summary
