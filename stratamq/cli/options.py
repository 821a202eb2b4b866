"""The options of each command that asks a running cluster."""

from dataclasses import dataclass
from pathlib import Path

from stratamq.cli.output import OutputFormat

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of each command that asks."""

    router: str
    data: Path
    output: OutputFormat
    api: str | None = None  # of the HTTP service; None: routers and nodes are asked
    token_file: Path | None = None
    show_api: bool = False  # print the call, and ask nobody
