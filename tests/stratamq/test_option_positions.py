"""Options of a group before its verb: as good as behind it, and refused where the verb has none of that name."""

from pathlib import Path

import pytest

from conf.errors import ExitCode
from stratamq.cli.main import main


@pytest.mark.parametrize("words", ["bridge check", "bridge status", "federate status", "balance status"])
@pytest.mark.parametrize("before", [True, False])
def test_config_before_a_verb_is_the_verbs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, before: bool
) -> None:
    """The file has a mistake, and the message names the file."""
    file = tmp_path / "of_mine.toml"
    file.write_text("nonsense = 1\n")
    group, verb = words.split()
    option = ["--config", str(file)]
    assert main([group, *option, verb] if before else [group, verb, *option]) == ExitCode.USAGE
    assert "of_mine.toml" in capsys.readouterr().err


def test_option_behind_the_verb_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is nearer."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text("nonsense = 1\n")
    main(["bridge", "--config", str(tmp_path / "one.toml"), "check", "--config", str(tmp_path / "two.toml")])
    said = capsys.readouterr().err
    assert "two.toml" in said and "one.toml" not in said


@pytest.mark.parametrize(
    "words", ["bridge import FILE", "federate init FOLDER", "gateway udp pub", "balance render nginx"]
)
def test_option_that_a_verb_does_not_have_is_refused(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """It would have no effect."""
    head, verb = (
        (words.split()[:2], words.split()[2:])
        if words.startswith("gateway")
        else (words.split()[:1], words.split()[1:])
    )
    assert main([*head, "--set", "logs.level=debug", *verb]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "--set" in said and said.count("\n") == 1
