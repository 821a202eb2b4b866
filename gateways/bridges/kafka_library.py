"""Import of the Kafka library on demand, and its settings from ours."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import ExitCode, UserError
from conf.private_files import read_secret

__all__ = ["SILENT", "ErrorReporter", "kafka_library", "kafka_settings"]

SILENT = {"log_level": 0}  # for checks: their findings are one line, not one log line for each attempt
CAUSES = ("_SSL", "_AUTHENTICATION", "_RESOLVE", "SASL_AUTHENTICATION_FAILED")


def kafka_library(name: str) -> Any:
    """Return the module.

    Raises:
      UserError: It is not installed.
    """
    try:
        return importlib.import_module("confluent_kafka")
    except ModuleNotFoundError:
        text = f"bridge.{name}: Kafka needs the extra kafka: pip install 'stratamq[kafka]'"
        raise UserError(text, ExitCode.USAGE) from None


def kafka_settings(where: str, brokers: Sequence[str], further: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of librdkafka; a value ``file:PATH`` is read from a file of mode 0600.

    Raises:
      UserError: A secret cannot be read.
    """
    options: dict[str, Any] = {"bootstrap.servers": ",".join(brokers), "logger": logging.getLogger("librdkafka")}
    for key, value in further.items():
        secret = value.startswith("file:")
        options[key] = read_secret(f"{where}.kafka", Path(value[5:])).decode() if secret else value
    return options


class ErrorReporter:
    """The cause of the latest connection failure of the library; for any thread.

    Args:
      library: The module.
      is_check: For a single check: a failed attempt is reported as the cause, unless a better one is known.
    """

    def __init__(self, library: Any, *, is_check: bool = False) -> None:
        self._codes = {getattr(library.KafkaError, name) for name in CAUSES}
        self._second = library.KafkaError._TRANSPORT if is_check else None
        self._text = ""

    def record(self, error: Any) -> None:
        """Record an error that concerns no single record."""
        if error.code() in self._codes or (error.code() == self._second and not self._text):
            self._text = error.str()

    def clear(self) -> None:
        """Clear the error: a broker answers."""
        self._text = ""

    def with_cause(self, text: str) -> str:
        """Return the text with the recorded cause, if there is one."""
        return f"{text}: {self._text}" if self._text else text
