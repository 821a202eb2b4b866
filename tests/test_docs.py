"""Pages under docs/: their links lead somewhere, the files that they name exist, and every decision is in the index."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import PACKAGES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DECISIONS = DOCS / "adr"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DECISIONS.glob("*.md"))]
SOURCES = sorted(path for room in PACKAGES for path in (ROOT / room).rglob("*.py"))
TESTED_PAGES = (
    "guarantees.md",
    "protocol.md",
    "simulation.md",
    "chaos.md",
    "fuzzing.md",
    "hardening.md",
)  # that name tests


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"\w+://", target):
            yield target


def headings(page: Path) -> set[str]:
    """Return the anchors that headings of a page have on GitHub."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    """A page that is moved takes its links along."""
    wrong = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in headings(file)):
            wrong.append(target)
    assert not wrong, f"{page.relative_to(ROOT)}: {', '.join(wrong)}"


def test_files_named_in_pages_exist() -> None:
    """Decisions are excluded: they describe the tree of their date."""
    wrong = []
    for page in PAGES:
        if page.parent != DECISIONS:
            names = re.findall(r"`((?:[a-z_]+/)+[\w.]+\.(?:py|pxd|c|toml|md|jsonl))\b", page.read_text())
            for name in sorted(set(names)):
                if not any((folder / name).exists() for folder in (ROOT, ROOT / "tests", page.parent)):
                    wrong.append(f"{page.name}: {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", TESTED_PAGES)
def test_tests_named_in_pages_exist(page: str) -> None:
    """A page names a file, a test in it, or (``::name``) another test of the last named file."""
    missing, path, count = [], "", 0
    for file, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", (DOCS / page).read_text()):
        path = file or path
        count += bool(file or name)
        if name and path and f"def {name}(" not in (ROOT / path).read_text():
            missing.append(f"{path}::{name}")
    assert count and not missing, "\n".join(missing)


def test_decision_table_names_existing_functions() -> None:
    """A file that moves, or a renamed function, requires an update of its row."""
    section = (DOCS / "architecture.md").read_text().split("## Where is it decided")[1]
    rows = re.findall(r"^\| ([^|]+\?) \| `([^`|]+)` \| `(\w+)` \|$", section, re.MULTILINE)
    assert len(rows) >= 40
    assert len(rows) == len(re.findall(r"^\| [^|-]+\?", section, re.MULTILINE)), "a row that is not as the others"
    wrong = []
    for question, file, name in rows:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8")) if (ROOT / file).exists() else ast.Module([], [])
        if not any(isinstance(node, kinds) and node.name == name for node in ast.walk(tree)):
            wrong.append(f"{question} {file}: {name}")
    assert not wrong, "\n".join(wrong)


def test_every_decision_is_in_the_index() -> None:
    """With its number and title, and with each page that changed it."""
    rows = re.findall(
        r"^\| (\d+) \| \d{4}-\d\d-\d\d \| \[(.+)\]\((\S+)\) \| (.+) \|$",
        (DECISIONS / "README.md").read_text(),
        re.MULTILINE,
    )
    listed = {file: (int(number), title) for number, title, file, _ in rows}
    pages = {}
    for page in sorted(DECISIONS.glob("0*.md")):
        found = re.match(r"# (\d+)[.:] (.+)\n", page.read_text())
        assert found, f"{page.name} begins with its number and title"
        assert int(found[1]) == int(page.name[:4]), page.name
        pages[page.name] = (int(found[1]), found[2])
    assert listed == pages
    numbers = [number for number, _ in pages.values()]
    assert len(set(numbers)) == len(numbers), "two decisions have one number"
    for number, title, _, state in rows:
        assert re.fullmatch(r"accepted|(amended|superseded) by \d+(, \d+)*", state), title
        later = [int(other) for other in re.findall(r"\d+", state)]
        assert all(other in numbers and other > int(number) for other in later), title


def test_protocol_rules_are_numbered_without_gap() -> None:
    """Sections and rules count from 1, so that "rule 3.4" is found; a section names files and tests."""
    sections = re.split(r"^## (\d+)\. .+$", (DOCS / "protocol.md").read_text(), flags=re.MULTILINE)[1:]
    assert [int(number) for number in sections[::2]] == list(range(1, len(sections) // 2 + 1))
    for number, text in zip(sections[::2], sections[1::2], strict=True):
        rules = [int(rule) for rule in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
        assert rules == list(range(1, len(rules) + 1)), f"section {number}"
        assert "\nFiles: `" in text and "Tests:" in text, f"section {number}"


def test_rules_cited_in_sources_exist() -> None:
    """``docs/protocol.md rule 3.4`` in a docstring refers to a rule, ``section 3`` to a section."""
    text = (DOCS / "protocol.md").read_text()
    known = set()
    for section, body in re.findall(r"^## (\d+)\. .+\n((?:(?!## ).*\n)*)", text, re.MULTILINE):
        known |= {section, *(f"{section}.{rule}" for rule in re.findall(r"^(\d+)\. ", body, re.MULTILINE))}
    wrong, count = [], 0
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        cited = re.findall(r"docs/protocol\.md\s(?:rules?|sections?) ([\d., to]*\d)", text)
        for number in re.findall(r"\d+(?:\.\d+)?", " ".join(cited)):
            count += 1
            if number not in known:
                wrong.append(f"{source.relative_to(ROOT)}: {number}")
    assert count > 30 and not wrong, "\n".join(wrong)


def test_the_changelog_is_sorted_by_kind() -> None:
    """Each release has some of four kinds, in this sequence."""
    kinds = ["Added", "Changed", "Fixed", "Removed"]
    releases = re.split(r"^## .+$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    for release in releases:
        found = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert found == [kind for kind in kinds if kind in found]
        assert not release.split("### ")[0].strip(), "an entry stands above the first kind"
