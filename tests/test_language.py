"""Limits on the language of the tree, and the form of commit subjects."""

import json
import re
import shutil
import subprocess

import pytest

from tests.prose_density import LIMITS, ROOT, measure

COMMITS = 50  # the newest ones
SUBJECT_CHARACTERS_MAX = 72


def test_prose_density_does_not_rise() -> None:
    """``python -m tests.prose_density --worst 20`` shows where; ``--write`` stores lower values."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git or the history is missing")
    limits, values = json.loads(LIMITS.read_text()), measure().limits()
    assert limits.keys() == values.keys()
    risen = {name: f"{value}, limit {limits[name]}" for name, value in values.items() if value > limits[name]}
    assert not risen


def test_commit_subjects_name_a_package_and_fit_a_line() -> None:
    """``package: verb object``, at most 72 characters."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("git or the history is missing")
    command = ["git", "-C", str(ROOT), "log", f"-{COMMITS}", "--no-merges", "--format=%s"]
    subjects = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    wrong = [
        subject
        for subject in subjects
        if len(subject) > SUBJECT_CHARACTERS_MAX or not re.match(r"[\w./]+(, [\w./]+)*: \w", subject)
    ]
    assert not wrong
