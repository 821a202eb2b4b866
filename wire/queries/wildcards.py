"""Patterns with ``*`` (any text) and ``?`` (any one character), matched in one pass over the text.

No regular expression and no backtracking. A pattern without ``?`` is a search for its pieces from left to right. Any
other one is matched as a bit set of all possible positions in the pattern.
"""

from collections.abc import Callable

__all__ = ["is_literal", "matcher"]


def is_literal(pattern: str) -> bool:
    """Return whether a pattern has no wildcards."""
    return "*" not in pattern and "?" not in pattern


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate that matches texts against a pattern."""
    if is_literal(pattern):
        return pattern.__eq__
    if "?" in pattern:
        return _bit_matcher(pattern)
    first, *middle, last = pattern.split("*")
    pieces = [piece for piece in middle if piece]

    def predicate(text: str) -> bool:
        end = len(text) - len(last)
        at = len(first)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for piece in pieces:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return predicate


def _bit_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate that tracks all positions of a pattern: bit n means that the first n signs are matched."""
    signs = ""
    stays = 0  # positions after a "*", which any character leaves unchanged
    for sign in pattern:
        if sign == "*":
            stays |= 1 << len(signs)
        else:
            signs += sign
    whole = 1 << len(signs)
    any_sign = sum(1 << at for at, sign in enumerate(signs) if sign == "?")
    takes = {letter: sum(1 << at for at, sign in enumerate(signs) if sign == letter) for letter in set(signs) - {"?"}}

    def predicate(text: str) -> bool:
        at = 1
        for letter in text:
            at = ((at & (takes.get(letter, 0) | any_sign)) << 1) | (at & stays)
            if not at:
                return False
        return bool(at & whole)

    return predicate
