"""The shape of every explanation: steps in order, the one that decides, and the sources."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from admin.scatter_gather import MissingRows

__all__ = ["Explanation", "ExplanationStep"]


class ExplanationStep(NamedTuple):
    """One thing that a node holds or did."""

    node: str  # "": none, the map or all
    what: str  # a word: "session", "window", "receiver", "near miss", ...
    why: str  # one sentence, with numbers and the setting's name
    at_ms: int | None = None
    facts: Mapping[str, object] = {}


class Explanation(NamedTuple):
    """An answer: ``cause`` is the step that decides, None where nothing is wrong."""

    question: str
    steps: Sequence[ExplanationStep]
    cause: ExplanationStep | None
    had: Sequence[str]
    lacked: Sequence[MissingRows]
    summary: str = ""  # where nothing is wrong

    @property
    def verdict(self) -> str:
        """The deciding sentence."""
        return self.cause.why if self.cause is not None else self.summary
