"""Explanations of a message by packet or entry: queried sources, and missing ones."""

from pathlib import Path

import pytest

from admin.explanations import NOTED_MAX
from tests.admin.scripted_cluster import ScriptedCluster
from wire.messages.client_rows import SessionDetail
from wire.messages.node_rows import JournalRow
from wire.queries.journal import Journal

ORIGIN = "edge-0/1/2"


def cluster_with_session(folder: Path) -> ScriptedCluster:
    """Return a cluster whose storage node has a session with nine past entries and an empty queue."""
    cluster = ScriptedCluster(folder)
    cluster.put("storage-0", "session", SessionDetail(client_id="c", online=False, durable=True, last_seq=9))
    return cluster


async def test_a_dropped_entry_is_found_in_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict was "acknowledged, or dropped", although the node's journal had the drop."""
    cluster = cluster_with_session(tmp_path)
    dropped = JournalRow(1, 1000, "storage-0", "drop", "queue_full", "c", "t", ORIGIN, "entry 3, the oldest")
    other = JournalRow(2, 2000, "storage-0", "drop", "expired", "c", "t", "edge-0/1/9", "entry 33")
    cluster.put("storage-0", "journal", dropped, other)
    async with cluster.running():
        assert await cluster.command("msg", "explain", "--session", "c", "--seq", "3") == 0
        output = capsys.readouterr().out
        assert f"what became of {ORIGIN}?" in output and "drop for 'c': queue_full (entry 3, the oldest)" in output
        assert await cluster.command("msg", "explain", "--session", "c", "--seq", "4") == 0
    assert "=> entry 4 of 'c' is not in its queue: it was acknowledged, or dropped" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--client", "c", "--packet", "3"), ("--session", "c", "--seq", "4")])
async def test_each_source_is_named(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unread ledgers, and nodes with unread journal and traces, were not listed."""
    cluster = cluster_with_session(tmp_path)
    cluster.silent = {"edge-1"}
    async with cluster.running():
        await cluster.command("msg", "explain", *words)
    output = capsys.readouterr()
    assert "traces of the nodes that answered" in output.out and "missing: " in output.out
    assert "ledgers (not read" in output.out and "edge-1" in output.out


async def test_journals_keep_the_beginning_of_a_long_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`client explain` never found the journal of a client ID beyond 256 characters."""
    name = "x" * 300
    cluster = ScriptedCluster(tmp_path)
    entry = JournalRow(1, 1000, "edge-0", "refused", "not_authorized", name[:NOTED_MAX], detail="no rule")
    cluster.put("edge-0", "journal", entry)
    async with cluster.running():
        await cluster.command("client", "explain", name)
    assert "it was refused" in capsys.readouterr().out


def test_journal_query_uses_stored_name_length() -> None:
    journal = Journal()
    journal.note("kicked", client_id="x" * 300)
    assert len(journal.entries[0].client_id) == NOTED_MAX
