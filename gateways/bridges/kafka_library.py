"""The library of Kafka, imported where a bridge needs it, and its settings from ours."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import ExitCode, UserError
from conf.private_files import read_secret

__all__ = ["SILENT", "ErrorReporter", "kafka_library", "kafka_settings"]

SILENT = {"log_level": 0}  # of one who only looks: what it finds is told in one line, not at each attempt
TELLING = ("_SSL", "_AUTHENTICATION", "_RESOLVE", "SASL_AUTHENTICATION_FAILED")


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
        UserError: A secret that cannot be read.
    """
    told: dict[str, Any] = {"bootstrap.servers": ",".join(brokers), "logger": logging.getLogger("librdkafka")}
    for key, value in further.items():
        secret = value.startswith("file:")
        told[key] = read_secret(f"{where}.kafka", Path(value[5:])).decode() if secret else value
    return told


class ErrorReporter:
    """The latest error of the library's connections that says why no broker answers; from any thread.

    Args:
        library: The module.
        looks: It is for one who looks once: then an attempt that failed says enough, where nothing says more.
    """

    def __init__(self, library: Any, *, looks: bool = False) -> None:
        self._codes = {getattr(library.KafkaError, name) for name in TELLING}
        self._second = library.KafkaError._TRANSPORT if looks else None
        self._text = ""

    def hear(self, error: Any) -> None:
        """Note an error that concerns no single record."""
        if error.code() in self._codes or (error.code() == self._second and not self._text):
            self._text = error.str()

    def forget(self) -> None:
        """Note that a broker answers."""
        self._text = ""

    def add_to(self, text: str) -> str:
        """Return what happened with its reason, where there is one."""
        return f"{text}: {self._text}" if self._text else text
