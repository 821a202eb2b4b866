"""``python -m tests.golden``: compare the golden files with this tree's output; ``--write`` updates them.

The exit code is 1 if there is a difference. A kind without an example gets two, made of its type (``--write``).
"""

import argparse
import difflib
import sys

from tests.golden.examples import example
from tests.golden.formats import FORMATS
from tests.golden.golden_file import FOLDER, Example, parse, render


def main() -> int:
    """Print the differences, file by file."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(FORMATS)}; all without a word")
    parser.add_argument("--write", action="store_true", help="write what this tree makes of the examples")
    arguments = parser.parse_args()
    unknown = set(arguments.formats) - set(FORMATS)
    if unknown:
        parser.error(f"no format {', '.join(sorted(unknown))}")
    changed = [name for name in arguments.formats or FORMATS if _changes(name, write=arguments.write)]
    if changed and not arguments.write:
        print(f"{', '.join(changed)}: this tree writes other bytes", file=sys.stderr)
    return 1 if changed and not arguments.write else 0


def _changes(name: str, *, write: bool) -> bool:
    path = FOLDER / f"{name}.txt"
    before = path.read_text() if path.exists() else ""
    form = FORMATS[name]
    examples = parse(before)
    for kind in form.codecs.keys() - {each.kind for each in examples}:
        of = form.codecs[kind].kind
        if of is None:
            print(f"{path}: {kind} has no example, and nobody can make one: write it by hand", file=sys.stderr)
            continue
        examples += [Example(f"{kind}, {word}", example(of, full=word == "full"), b"") for word in ("full", "least")]
    order = list(form.codecs)
    examples = [each for each in examples if each.kind in form.codecs]
    examples.sort(key=lambda each: order.index(each.kind))
    now = []
    for each in examples:
        codec = form.codecs[each.kind]
        now.append(Example(each.name, each.value, codec.encode(codec.build(each.value))))
    after = render(form.title, now)
    sys.stdout.writelines(
        difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), str(path), "this tree")
    )
    if write and after != before:
        path.write_text(after)
    return after != before


if __name__ == "__main__":
    sys.exit(main())
