"""This tree reads the data of an earlier one: a store, a Raft log and an export, completely and equal to its dump."""

from pathlib import Path

from tests.golden.old_data import DUMP, dump, unpack_archive


def test_old_store_raft_log_and_export_are_read_completely(tmp_path: Path) -> None:
    """``python -m tests.golden.old_data`` rebuilds both after an intended change of a format."""
    unpack_archive(tmp_path)
    assert dump(tmp_path) == DUMP.read_text()


def test_old_store_has_the_state_for_a_restart() -> None:
    """Sessions, subscriptions, queues, retained messages, a will, a body stored apart, and incoming QoS 2."""
    kinds = {bytes.fromhex(line.split()[0])[2:3] for line in DUMP.read_text().split("# Raft log")[0].splitlines()[1:]}
    assert kinds >= {b"A", b"a", b"b", b"f", b"i", b"l", b"n", b"o", b"q", b"r", b"s", b"u", b"w"}
