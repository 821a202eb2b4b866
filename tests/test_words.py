"""Words that can be counted: docstrings that say something first, and subjects of commits that fit a line.

How a sentence should read otherwise is a matter for readers.
"""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rooms import ROOMS

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
C_FORMS = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.pxd"))
NO_SUBJECTS = {"What", "Who", "Whom", "Whoever", "Whatever"}
# Names that an idea has no more: the pattern, the name instead of it, lines that mean something else by the word, and
# where this is so.
FORMER_NAMES = [
    (
        r"\b([Ll]ife|LIFE)\b|_life\b",
        "incarnation",
        r"(of|as) life|[Ll]ife of (a connection|a socket|an operation|its (process|disk))|[Tt]heir life|short life",
        ROOMS,
    ),
    (r"\b(HandingOn|handing_on|pick_again|hand_on)\b", "redispatch", r"^$", ROOMS),
    (
        r"\brounds?\b(?!\()|_PER_ROUND|\b(begin|end|one|next|after|wants|per)_round|\bround_(end|ns|bytes)",
        "turn",  # of a loop; a round is the quorum's or gossip's
        r"quorum|round robin|round_robin|round trip|way round",
        ("storage/", "wire/", "edge/"),
    ),
    (
        r"commit_no\b|\bsubmissions?\b|[.]commit\b(?! ?\()|next_commit\b",
        "batch, transaction, commit_index",
        r"^$",
        ("storage/",),
    ),
    (r"\benter_gate\b|[.]gate\b|\bgated\b", "ack_queue, reserve_ack, reserved_ack", r"^$", ("edge/",)),
    (r"\bstrike_(peer|dead)\b|\bstruck\b", "retire_peer, dead", r"^$", ("edge/",)),
    (r"\bset_home\b", "set_primary_of", r"^$", ROOMS),
    (r"\b(conn|options|peer|route)[.]owner\b", "context, key, audience", r"^$", ("edge/",)),
    (
        r"\b(is_repeated|_is_repeated|has_no_room|route_is_(slow|full)|_is_behind_refused|may_read|_may_create)\b",
        "take_origin, park_if_full and other verbs: asking changes something",
        r"^$",
        ("edge/",),
    ),
    (
        r"code\w* *(==|!=|>=|<|in) *\(?0x[89]|\w\(0x[89][0-9A-Fa-f]\)",
        "a name of mqtt/reasons.py",
        r"\(code >= 0x80\) or died",
        ("edge/",),
    ),
    (r"\bhot[.]named\b", "origin_tag", r"^$", ("edge/",)),
    (r"\bClaimTable\b|\bhosted\.(claims|core)\b", "ownership, and a hosted partition's partition", r"^$", ROOMS),
    (r"\bextra[_ ]partition|RetainedRegisters", "retained_partition, RetainedStore", r"^$", ROOMS),
    (
        r"\b[Rr]egisters\b|\bregister\b|_registers?\b|\bregister_written\b",
        "a topic's retained message, its retained partition",  # to register is what nodes, filters and sockets do
        r"[.]register\(|(def|object) register\(|it registers|[:,] register (its|the cached)|# register (saw|keeps)",
        ("storage/", "wire/", "edge/"),
    ),
]
QUESTIONS = ("is_", "has_", "may_")
CHANGING_CALLS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft",
    "remove", "setdefault", "update",
}  # fmt: skip
# Questions of the compiled loop that change something still: (file, function).
COMMITS = 50  # the last ones
SUBJECT_CHARACTERS_MAX = 72

Described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def described(tree: ast.Module) -> Iterator[tuple[Described, bool]]:
    """Yield the module, its classes, functions and methods, and whether each is public."""
    yield tree, True
    waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
    while waiting:
        parent, public = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node, public and not node.name.startswith("_")
                if isinstance(node, ast.ClassDef):
                    waiting.append((node, public and not node.name.startswith("_")))


def test_no_docstring_begins_with_what_or_who() -> None:
    """A docstring begins with its verb, or with the noun that it describes."""
    wrong = []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        for node, _ in described(ast.parse(path.read_text(encoding="utf-8"))):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].rstrip(",:") in NO_SUBJECTS:
                wrong.append(f"{name}:{node.body[0].lineno}: {' '.join(words[:8])} ...")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("former", "better", "otherwise", "where"), FORMER_NAMES, ids=[name[1] for name in FORMER_NAMES]
)
def test_former_names_stay_away(former: str, better: str, otherwise: str, where: tuple[str, ...]) -> None:
    """One idea has one name, in code and in its prose."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (*SOURCES, *C_FORMS)
        if path.relative_to(ROOT).as_posix().startswith(where)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(former, line) and not re.search(otherwise, line)
    ]
    assert not wrong, f"{better} is the name now:\n" + "\n".join(wrong)


def changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function writes to an attribute or an entry, or changes a collection that is one of an object."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            return True
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in CHANGING_CALLS and isinstance(node.func.value, ast.Attribute):
            return True
    return False


def test_a_question_changes_nothing() -> None:
    """A function named ``is_``, ``has_`` or ``may_`` may be asked twice, and left out: others have a verb."""
    found = {
        (path.relative_to(ROOT).as_posix(), node.name)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.lstrip("_").startswith(QUESTIONS)
        and changes(node)
    }
    wrong = sorted(f"{file}: {name}" for file, name in found)
    assert not wrong, "named as a question, and changes something:\n" + "\n".join(wrong)


def test_public_names_are_described() -> None:
    """Modules with code, and every public class, function and method."""
    missing = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node, public in described(tree):
            if not public or ast.get_docstring(node) is not None:
                continue
            if not isinstance(node, ast.Module):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
            elif tree.body:
                missing.append(str(path.relative_to(ROOT)))
    assert not missing, "\n".join(missing)


def subjects() -> list[str]:
    """Return the subjects of the last commits, none where there is no history."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return []
    command = ["git", "-C", str(ROOT), "log", f"-{COMMITS}", "--no-merges", "--format=%s"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return shown.stdout.splitlines() if shown.returncode == 0 else []


def test_commit_subjects_name_a_room_and_fit_a_line() -> None:
    """``room: verb object``, at most 72 characters."""
    if not (shown := subjects()):
        pytest.skip("no history here")
    wrong = [
        subject
        for subject in shown
        if len(subject) > SUBJECT_CHARACTERS_MAX
        or not re.match(r"[\w./]+(, [\w./]+)*: \w", subject)
        or subject.split(": ", 1)[1].split()[0].capitalize() in NO_SUBJECTS
    ]
    assert not wrong, "\n".join(wrong)
