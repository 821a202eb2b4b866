"""The common options of commands that send requests to a cluster."""

from dataclasses import dataclass
from pathlib import Path

from stratamq.cli.output import OutputFormat

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The common options."""

    router: str
    data: Path
    output: OutputFormat
    api: str | None = None  # URL of the HTTP service; None: use routers and nodes
    token_file: Path | None = None
    show_api: bool = False  # print the request without sending it
