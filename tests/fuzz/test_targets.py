"""Every target on its own corpus and briefly on damaged input; and regressions."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.edge.loop.conftest import load
from tests.fuzz import file_targets, sanitized
from tests.fuzz.__main__ import Count, table
from tests.fuzz.one_target import Box, run_target
from tests.fuzz.targets import TARGETS, Target
from wire.messages.control import decode_control
from wire.sstable.manifest import ManifestDamaged, decode_manifest

FAST = [target for target in TARGETS if target.name != "decoder"]  # that one has its own tests


@pytest.mark.parametrize("target", FAST, ids=lambda target: target.name)
def test_target_on_brief_mutation(target: Target) -> None:
    for good in target.corpus:
        target.check(good)
    cases, culprit = run_target(target, seed=5, seconds=0.5)
    assert culprit is None
    assert cases


def test_control_tag_with_invalid_utf_8() -> None:
    """Found by the target "control": UnicodeDecodeError was raised instead of the documented error."""
    found = bytes.fromhex("84a474797065a5ba646d696ea77265717565737401a476657261")
    with pytest.raises(msgspec.ValidationError):
        decode_control(found + bytes(20))


def test_manifest_with_invalid_utf_8() -> None:
    """Found by the target "manifest"."""
    with pytest.raises(ManifestDamaged):
        decode_manifest(b'{"\xec\x28": 1}')


@pytest.mark.parametrize("found", ["09002910", "0905ff", "0900dbc3db"])
def test_sstable_with_damaged_metadata(found: str) -> None:
    """Found by the target "sstable": the library raised KeyError and UnicodeDecodeError."""
    file_targets.sstable(bytes.fromhex(found))


def test_process_count_and_last_input_are_known(tmp_path: Path) -> None:
    """The starter reads them, also after a kill; here the process ends after its number of executions."""
    command = [sys.executable, "-m", "tests.fuzz.one_target", "acks", "--seconds", "60", "--seed", "3"]
    box = tmp_path / "box"
    subprocess.run([*command, "--executions", "500", "--box", str(box), "--corpus", str(tmp_path)], check=True)
    executions, last = Box.read(box)
    assert executions == 500
    assert len(last) < 65_536


def test_counts_become_a_table() -> None:
    """Guided and random executions are separate, and totalled."""
    counts = [Count("d", "client", guided, True, 1, 60.0, 1500, False) for guided in (True, False, False)]
    lines = table(counts).splitlines()
    assert "| client | yes | 1,500 | 3,000 | 3 | 0 |" in lines
    assert lines[-1] == "4,500 executions together."


PLANTED = """
import cython

def last(data: bytes, after: cython.Py_ssize_t) -> int:
    at: cython.p_uchar = data
    return at[len(data) + after]
"""


@pytest.mark.skipif(not sanitized.can_build(), reason="needs gcc with the address sanitizer")
def test_read_behind_buffer_ends_sanitized_process(tmp_path: Path) -> None:
    """The sanitizer works: it detects a read one byte behind a buffer, in a module built like the fuzzed ones."""
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "setup.py").write_text(sanitized.setup_text(("planted",)))
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tmp_path, check=True)
    ended = []
    for after in (0, 8):  # a zero follows the bytes, then unowned memory
        command = [sys.executable, "-c", f"import planted; planted.last(b'x' * 4096, {after})"]
        environment = sanitized.environment(tmp_path)
        ended.append(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True))
    assert ended[0].returncode == 0, ended[0].stderr
    assert ended[1].returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in ended[1].stderr


def test_broken_output_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a subscriber gets half a packet."""
    from tests.fuzz.hot_session import CLIENT_CORPUS, READ_EVERY, HotSession

    session = HotSession(load("pure"))
    whole = session.broker.raw
    monkeypatch.setattr(session.broker, "raw", lambda conn: whole(conn)[:-1])
    data = next(data for data in CLIENT_CORPUS if data[:2] == b"\x01\xa4")
    with pytest.raises(AssertionError):
        for _ in range(READ_EVERY):
            session.client(data)
