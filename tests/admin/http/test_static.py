"""The dashboard's files: vendored files are unchanged, no content from other hosts, and small size."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[3] / "admin" / "static"
BYTES_MAX = 300 * 1024


def test_vendored_files_match_lock() -> None:
    """Name, package, release and SHA-256 are in vendor.lock, with a licence for each."""
    folder = STATIC / "vendor"
    rows = [line.split() for line in (folder / "vendor.lock").read_text().splitlines()]
    assert {row[0] for row in rows} == {path.name for path in folder.iterdir() if path.suffix in (".js", ".css")}
    for name, _package, _release, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    assert {path.name for path in folder.glob("LICENSE.*")} == {"LICENSE.htm", "LICENSE.preact", "LICENSE.uplot"}


def test_the_dashboard_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) <= BYTES_MAX


def test_pages_have_no_inline_or_foreign_content() -> None:
    """No inline script or style, no address of another host, no markup from data."""
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    for path in STATIC.rglob("*"):
        if path.suffix in (".js", ".html", ".css") and path.parent.name != "vendor":
            text = path.read_text()
            assert not re.search(r"(?:https?:)?//(?!www\.w3\.org)[a-z0-9-]+\.[a-z]", text), path
            assert "innerHTML" not in text and "eval(" not in text and "style=" not in text, path


def test_reduced_motion_disables_animations() -> None:
    """Styles disable animations then, and animations exist in style sheets only."""
    style = (STATIC / "style.css").read_text()
    (rule,) = re.findall(r"@media \(prefers-reduced-motion: reduce\) \{ \* \{([^}]*)\}", style)
    assert "transition: none !important" in rule and "animation: none !important" in rule
    scripts = [path.read_text() for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
    assert not [one for one in scripts if re.search(r"\.animate\(|behavior: ?\"smooth|requestAnimationFrame", one)]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_large_integers_become_text_and_fractions_stay() -> None:
    """A rate with sixteen fractional digits was split: no page with one was ever displayed."""
    text = (
        '{"a":4.4543429844097995,"b":30064771073,"c":1883016750280212482,"d":"12345678901234567","e":-1234567890123456}'
    )
    script = f"import {{ exact }} from '{STATIC / 'api.js'}'; console.log(exact({text!r}));"
    command = ["node", "--experimental-default-type=module", "--input-type=module", "-e", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "a": 4.4543429844097995,
        "b": 30064771073,
        "c": "1883016750280212482",
        "d": "12345678901234567",
        "e": "-1234567890123456",
    }
