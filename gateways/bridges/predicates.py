"""Conditions on messages: a CEL expression over the JSON in the payload, with bounded time.

CEL has no unbounded loops and no side effects; the library is compiled. A message for which the expression fails goes
to the dead letter.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

from gateways.bridges.message import BridgeMessage, user_properties

__all__ = ["Predicate", "PredicateUndecided"]

PREDICATE_S_MAX = 0.001  # of processor time


class PredicateUndecided(Exception):
    """A predicate has no result for a message; ``reason`` is the counter's label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Predicate:
    """One expression.

    Args:
      text: CEL over ``payload``, ``topic``, ``qos``, ``retain`` and ``properties``.
      processor_s: Returns the CPU time of this thread, in seconds.

    Raises:
      ValueError: The expression is invalid, or the library is missing.
    """

    def __init__(self, text: str, processor_s: Callable[[], float]) -> None:
        try:
            library: Any = importlib.import_module("cel")
        except ModuleNotFoundError:
            raise ValueError("where needs CEL: pip install 'stratamq[rules]'") from None
        try:
            self._program = library.compile(text)
        except ValueError as error:
            raise ValueError(f"{text!r}: {str(error).splitlines()[0]}") from None
        self._processor_s = processor_s

    def holds(self, message: BridgeMessage) -> bool:
        """Return the result for a message.

        Raises:
          PredicateUndecided: The payload is no JSON, a named value is missing, or the evaluation takes too long.
        """
        try:
            payload = json.loads(message.payload)
        except (ValueError, RecursionError):
            raise PredicateUndecided("not_json", "the payload is no JSON") from None
        properties = dict(reversed(user_properties(message.properties)))
        began = self._processor_s()
        try:
            answer = self._program.execute(
                {
                    "payload": payload,
                    "topic": message.topic,
                    "qos": message.qos,
                    "retain": message.retain,
                    "properties": properties,
                }
            )
        except Exception as error:
            raise PredicateUndecided("predicate_failed", str(error).split(". ")[0]) from None
        if self._processor_s() - began > PREDICATE_S_MAX:
            raise PredicateUndecided("predicate_slow", "the expression took more than 1 ms")
        if not isinstance(answer, bool):
            raise PredicateUndecided("predicate_failed", f"the answer is {answer!r}, not true or false")
        return answer
