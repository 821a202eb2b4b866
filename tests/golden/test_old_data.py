"""This tree opens what an earlier one wrote: a store, a Raft log and an export, all of it and equal to its dump."""

from pathlib import Path

from tests.golden.old_data import DUMP, dump, unpack_archive


def test_store_raft_log_and_export_of_an_earlier_tree_are_read_whole(tmp_path: Path) -> None:
    """``python -m tests.golden.old_data`` makes both anew where a format changes on purpose."""
    unpack_archive(tmp_path)
    assert dump(tmp_path) == DUMP.read_text()


def test_the_old_store_has_what_a_restart_must_find() -> None:
    """Sessions, subscriptions, queues, retained messages, a will, a body apart, and QoS 2 on its way in."""
    kinds = {bytes.fromhex(line.split()[0])[2:3] for line in DUMP.read_text().split("# Raft log")[0].splitlines()[1:]}
    assert kinds >= {b"A", b"a", b"b", b"f", b"i", b"l", b"n", b"o", b"q", b"r", b"s", b"u", b"w"}
