"""The command line of a job: argparse, as under spark-submit, with the help format of the other commands.

Defines the format of help and usage errors, and the options of all Spark jobs. Each job adds its own options.
"""

import argparse
import sys
import textwrap
from typing import Any, NoReturn

from jobs.findings import JobExitCode

__all__ = ["JobParser", "spark_options"]

WIDTH = 80
COLUMN = 28  # of the descriptions


class JobParser(argparse.ArgumentParser):
    """A parser with the help and error format of ``stratamq ring`` or ``stratamq store``."""

    def __init__(self, prog: str, description: str) -> None:
        self._options: list[argparse.Action] = []  # in help order
        super().__init__(prog=prog, description=description, add_help=False)
        self._help = super().add_argument("-h", "--help", action="help", help="show this help message and exit")

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an option, as argparse does."""
        option = super().add_argument(*names, **settings)
        self._options.append(option)
        return option

    def format_help(self) -> str:
        """Return the usage line, the description and one entry for each option."""
        lines = [self.format_usage().rstrip(), "", f"  {self.description}", "", "Options:"]
        for action in (*self._options, self._help):
            takes = "" if action.nargs == 0 else f" <{_type_of(action)}>"
            head = ", ".join(action.option_strings) + takes
            text = (action.help or "") + (" [required]" if action.required else "")
            text = text[:1].upper() + text[1:]
            wrapped = textwrap.wrap(text, WIDTH - COLUMN) or [""]
            if len(head) + 4 > COLUMN:
                lines.append(f"  {head}")
            else:
                lines.append(f"  {head:<{COLUMN - 2}}{wrapped.pop(0)}".rstrip())
            lines += [" " * COLUMN + line for line in wrapped]
        return "\n".join(lines) + "\n"

    def format_usage(self) -> str:
        """Return the first line of the help."""
        return f"Usage: {self.prog} [OPTIONS]\n"

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint to the help, and exit with code 2."""
        message = message[:1].upper() + message[1:]
        print(f"{self.format_usage()}Try '{self.prog} -h' for help.\n\nError: {message}", file=sys.stderr)
        raise SystemExit(int(JobExitCode.USAGE))


def spark_options(options: argparse.ArgumentParser) -> None:
    """Add the options of every Spark job."""
    options.add_argument("--spark-logs", action="store_true", help="show Spark's own log lines")


def _type_of(action: argparse.Action) -> str:
    return getattr(action.type, "__name__", "str") if action.type is not None else "str"
