"""Count the constructions that CONTRIBUTING.md advises against, per 1 000 words of prose.

    python -m tests.prose_density                 one row for each folder
    python -m tests.prose_density --worst 20      also the files with the highest density
    python -m tests.prose_density --write         store the values as the limits of tests/test_language.py

Prose is comments, docstrings and Markdown outside code blocks. String literals with at least three words (errors, log
texts, help texts) are counted apart. The counter also lists public type names that several modules define. A density
shows where to read; it cannot judge a sentence.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.packages import PACKAGES

__all__ = ["LIMITS", "Count", "Density", "measure"]

ROOT = Path(__file__).parent.parent
LIMITS = Path(__file__).parent / "prose_density.json"
GROUPS = {
    "what/who": r"\b(what|whatever|who|whom|whoever|whose)\b",
    "tell/say/hear": r"\b(tells?|told|telling|says?|said|saying|hears?|heard)\b",
    "look/stand/go on": (
        r"\b((?:looks?|looked|looking)(?![ -]up)|stands?|stood|goes? on|went on|gives? way|given way)\b"
    ),
    "nobody/everything": r"\b(nobody|everybody|somebody|something|everything|nothing|anybody)\b",
    "anew/in vain": r"\b(anew|once more|for ever|in vain|no more)\b",
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in GROUPS.items()}
SKIPPED = ("docs/adr/", "docs/history/", "bench/results/")
CODE = re.compile(r"```.*?```|`[^`]*`|\(https?:[^)]*\)", re.DOTALL)
LITERAL_WORDS_MIN = 3
WORDS_MIN = 150  # of a file in the list of --worst
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Count:
    """Words, and hits by group."""

    words: int = 0
    hits: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        """Count one text."""
        self.words += len(re.findall(r"[A-Za-z]+", text))
        for name, pattern in PATTERNS.items():
            self.hits[name] += len(pattern.findall(text))

    def merge(self, other: "Count") -> None:
        """Add the numbers of another count."""
        self.words += other.words
        self.hits.update(other.hits)

    def density(self, *groups: str) -> float:
        """Return the hits per 1 000 words, of all groups by default."""
        hits = sum(self.hits[name] for name in groups or GROUPS)
        return 1000 * hits / max(1, self.words)


@dataclass
class Density:
    """The result for a tree: prose by folder and by file, string literals of the product, type names by module."""

    folders: dict[str, Count]
    files: dict[str, Count]
    literals: Count
    types: dict[str, list[str]]  # public class name -> files of the product that define it

    def total(self, folders: Iterable[str]) -> Count:
        """Return the sum over folders."""
        sum_ = Count()
        for name in folders:
            sum_.merge(self.folders.get(name, Count()))
        return sum_

    def duplicates(self) -> dict[str, list[str]]:
        """Return the public type names with more than one definition."""
        return {name: files for name, files in self.types.items() if len(files) > 1}

    def limits(self) -> dict[str, float]:
        """Return the values that tests/test_language.py compares."""
        product = self.total(PACKAGES)
        return {
            "product": round(product.density(), 1),
            "product, what/who": round(product.density("what/who"), 1),
            "product, words": product.words,
            "product, string literals": round(self.literals.density(), 1),
            "tests": round(self.folders["tests"].density(), 1),
            "docs": round(self.total(("docs", "README.md")).density(), 1),
            "duplicate type names": len(self.duplicates()),
        }


def measure(root: Path = ROOT) -> Density:
    """Return the density of all tracked Python and Markdown files below a folder."""
    result = Density(defaultdict(Count), {}, Count(), defaultdict(list))
    for name in _tracked(root):
        path, folder = root / name, name.split("/")[0] if "/" in name else name
        count = Count()
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            count.add(CODE.sub(" ", source))
        else:
            tree = ast.parse(source)
            count.add("\n".join(_comments_and_docstrings(source, tree)))
            if folder in PACKAGES:
                result.literals.add("\n".join(_literals(tree)))
                for node in tree.body:
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        result.types[node.name].append(name)
        result.files[name] = count
        result.folders[folder].merge(count)
    return result


def _tracked(root: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "*.py", "*.md"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    kept = [name for name in listed if not name.startswith(SKIPPED) and not name.endswith("_pb2.py")]
    return [name for name in kept if (root / name).exists()]


def _comments_and_docstrings(source: str, tree: ast.Module) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            yield ast.get_docstring(node) or ""


def _literals(tree: ast.Module) -> Iterator[str]:
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, Documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if " " in node.value and len(re.findall(r"[A-Za-z]+", node.value)) >= LITERAL_WORDS_MIN:
            yield node.value


def _row(title: str, count: Count) -> str:
    groups = "".join(f"{count.density(name):19.1f}" for name in GROUPS)
    return f"{title:22}{count.words:9}{count.density():7.1f}{groups}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prose_density", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also list N files")
    parser.add_argument("--write", action="store_true", help=f"store the values in {LIMITS.name}")
    arguments = parser.parse_args()
    result = measure(arguments.root)
    print(f"{'folder':22}{'words':>9}{'sum':>7}" + "".join(f"{name:>19}" for name in GROUPS))
    for name, count in sorted(result.folders.items(), key=lambda item: -item[1].words):
        print(_row(name, count))
    print(_row("product", result.total(PACKAGES)))
    print(_row("product, literals", result.literals))
    for name, files in sorted(result.duplicates().items()):
        print(f"type {name}: {', '.join(files)}")
    listed = [(count.density(), name) for name, count in result.files.items() if count.words > WORDS_MIN]
    for density, name in sorted(listed, reverse=True)[: arguments.worst]:
        print(f"{density:6.1f}  {name}")
    if arguments.write:
        LIMITS.write_text(json.dumps(result.limits(), indent=2) + "\n")


if __name__ == "__main__":
    main()
