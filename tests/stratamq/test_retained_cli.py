"""`stratamq retained clear | purge` take nothing away of a list that is not complete."""

from pathlib import Path

import pytest

from tests.admin.scripted_cluster import ScriptedCluster
from wire.messages.operators import AdminReply
from wire.messages.topic_rows import RetainedMessageRow


async def test_retained_clear_with_silent_node_deletes_no_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The messages of a silent node are unknown."""
    cluster = ScriptedCluster(tmp_path, storages=2)
    cluster.put("storage-0", "retained", RetainedMessageRow(topic="a/1", bytes=3))
    cluster.replies["retained clear"] = AdminReply(0, True, {"nodes": []})
    async with cluster.running():
        assert await cluster.command("retained", "purge", "a/#", "--yes", "-o", "json") == 0
        assert '"cleared": 1' in capsys.readouterr().out
        cluster.silent.add("storage-1")
        for words in (("purge", "a/#"), ("purge", "b/#"), ("clear", "a/1"), ("clear", "b")):
            assert await cluster.command("retained", *words, "--yes") == 3
            shown = capsys.readouterr()
            assert "storage-1: no answer" in shown.err and "cleared" not in shown.out
