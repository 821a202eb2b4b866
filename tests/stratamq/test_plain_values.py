"""Values of a command line: plain ones are read without pydantic, others as typer reads them."""

import enum
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperOption

from stratamq.cli import plain_values

ROOT = Path(__file__).parent.parent.parent


class Word(enum.StrEnum):
    ONE = "one"
    TWO = "two"


def command(
    *,
    text: Annotated[str, typer.Option()] = "",
    number: Annotated[int, typer.Option(min=1, max=100)] = 5,
    seconds: Annotated[float, typer.Option(min=0.5)] = 2.0,
    path: Annotated[Path, typer.Option()] = Path("data"),
    maybe: Annotated[Path | None, typer.Option()] = None,
    word: Annotated[Word, typer.Option()] = Word.ONE,
    flag: Annotated[bool, typer.Option("--flag")] = False,
    many: Annotated[list[str], typer.Option()] = [],  # noqa: B006  # typer copies it
    numbers: Annotated[list[int] | None, typer.Option()] = None,
) -> tuple[Any, ...]:
    return text, number, seconds, path, maybe, word, flag, many, numbers


def outcome(arguments: list[str]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    try:
        return app(args=arguments, standalone_mode=False)
    except typer.BadParameter as mistake:
        return mistake.format_message()


LINES = [
    "",
    "--text a --number 7 --seconds 3 --path x --maybe y --word two --flag --many a --many b --numbers 1 --numbers 2",
    "--text= --path=",
    "--number 0",
    "--number 101",
    "--number 5.0",
    "--number 1_0",
    "--number +5",
    "--number x",
    "--number ٣",
    "--number 99999999999999999999",
    "--seconds 0.4",
    "--seconds 1e3",
    "--seconds nan",
    "--seconds .5",
    "--word TWO",
    "--word three",
    "--path /root/nowhere/at/all --maybe .",
    "--numbers 1 --numbers x",
]


@pytest.mark.parametrize("line", LINES)
def test_values_and_mistakes_are_those_of_typer(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = TyperOption.get_runtime_param
    monkeypatch.setattr(TyperOption, "get_runtime_param", getattr(reader, "of_typer", reader))
    wanted = outcome(line.split())
    plain_values.read_plainly()
    found = outcome(line.split())
    assert found == wanted or (found != found and wanted != wanted)
    assert not isinstance(found, tuple) or [*map(type, found)] == [*map(type, wanted)]


def test_a_plain_command_imports_no_pydantic() -> None:
    """It takes half of the time to the first question."""
    code = """
import sys
from stratamq.cli.main import main
assert main(sys.argv[1:]) == 0
print([name for name in ("pydantic", "http.client", "rich") if name in sys.modules], file=sys.stderr)
"""
    words = [
        "client",
        "list",
        "--show-api",
        "--data",
        ".",
        "--limit",
        "7",
        "--filter",
        "user=a*",
        "--node",
        "edge-0",
        "--every",
        "2.5",
        "-o",
        "jsonl",
    ]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("GET /api/v1/clients?") and done.stderr.strip() == "[]"
