"""A node that lacks in an answer, as each answer of the API names it."""

import msgspec

__all__ = ["PartialResult"]


class PartialResult(msgspec.Struct):
    """A node whose rows are not all there."""

    node: str
    why: str
