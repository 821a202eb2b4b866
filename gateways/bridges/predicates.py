"""Conditions on messages: an expression in CEL over the JSON in the payload, with a bound on its time.

CEL has no loops without bound and no side effects; the library is compiled. What cannot be judged is not let fall in
silence: the message goes to the dead letter.
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
    """A predicate has no answer for a message; ``reason`` is the counter's label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Predicate:
    """One expression.

    Args:
        text: CEL over ``payload``, ``topic``, ``qos``, ``retain`` and ``properties``.
        processor_s: Returns the processor time that this thread has used, in seconds.
    Raises:
        ValueError: It is no expression, or the library is missing.
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
        """Return the answer for a message.

        Raises:
            Unjudged: The payload is no JSON, has not what the expression names, or the answer takes too long.
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
