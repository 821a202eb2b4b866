"""A missing node in a response, in the form that all API responses use."""

import msgspec

__all__ = ["PartialResult"]


class PartialResult(msgspec.Struct):
    """A node whose rows are incomplete."""

    node: str
    why: str
