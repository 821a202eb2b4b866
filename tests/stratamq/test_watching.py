"""Commands that are watched, and `top`: what a look that fails, a terminal and a key do to them."""

import json
import os
import pty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from admin.queries import ListResult
from admin.scatter_gather import MissingRows
from conf.errors import ExitCode, NotFound, UserError
from stratamq.cli import listing
from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.main import main
from stratamq.cli.options import Options
from stratamq.cli.output import OutputFormat
from stratamq.cli.watching import again_and_again
from tests.admin.scripted_cluster import ScriptedCluster
from tests.wire.test_hub import certificates
from wire.messages.client_rows import ClientRow
from wire.messages.node_rows import SlowSubscriberRow, StatsRow

AWAY = UserError("no router leads\nask again", ExitCode.NOT_READY)
END = KeyboardInterrupt()


def acts(*steps: Any) -> Callable[..., Any]:
    """Return a function that gives or raises these, one a call."""
    left = list(steps)

    def act(*_: object, **__: object) -> Any:
        step = left.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    return act


def test_watch_continues_without_reachable_router(capsys: pytest.CaptureFixture[str]) -> None:
    """An election ended it. Whoever cannot be asked from the start is told so at once."""
    for first in (None, typer.Exit(3)):
        with pytest.raises(KeyboardInterrupt):
            again_and_again(acts(first, AWAY, None, AWAY, END), OutputFormat.TABLE, 0.01, watch=True)
        assert capsys.readouterr().err == "stratamq: no router leads\nstratamq: ask again\n" * 2
    for steps in ((AWAY,), (None, UserError("no such session"))):
        with pytest.raises(UserError):
            again_and_again(acts(*steps), OutputFormat.TABLE, 0.01, watch=True)


def test_a_thing_that_is_gone_may_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    """The watch of a client ended when the client did."""
    gone = NotFound("no session and no connection of client 'c'")
    with pytest.raises(KeyboardInterrupt):
        again_and_again(acts(None, gone, gone, None, END), OutputFormat.TABLE, 0.01, watch=True)
    assert capsys.readouterr().err == f"stratamq: {gone.message}\n" * 2
    with pytest.raises(NotFound):
        again_and_again(acts(gone), OutputFormat.TABLE, 0.01, watch=True)


def test_watched_list_continues_and_names_silent_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of a node that did not answer were missing without a word."""
    page = ListResult((("edge-0", ClientRow(client_id="c")),), partial=(MissingRows("edge-1", "no answer in 1 s"),))
    monkeypatch.setattr(listing, "with_cluster", acts(page, AWAY, page, END))
    assert main(["client", "list", "--columns", "client_id", "--watch", "--every", "0.1"]) == 130
    shown, said = capsys.readouterr()
    assert shown.split() == ["CLIENT_ID", "c"] * 2
    assert said.count("not complete: edge-1: no answer in 1 s") == 2 and said.count("no router leads") == 1
    monkeypatch.setattr(listing, "with_cluster", acts(AWAY))
    assert main(["client", "list", "--watch", "--every", "0.1"]) == 4


def test_watch_clears_screen_after_complete_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal was empty for as long as the nodes were asked."""
    screen, terminal = pty.openpty()
    written: list[bytes] = []

    def look() -> None:
        os.set_blocking(screen, False)
        try:
            written.append(os.read(screen, 10_000))
        except BlockingIOError:
            written.append(b"")
        finally:
            os.set_blocking(screen, True)
        if len(written) == 3:
            raise KeyboardInterrupt
        typer.echo(f"look {len(written)}")

    with os.fdopen(terminal, "w") as shown:
        monkeypatch.setattr("sys.stdout", shown)
        with pytest.raises(KeyboardInterrupt):
            again_and_again(look, OutputFormat.TABLE, 0.01, watch=True)
        monkeypatch.undo()
    os.close(screen)
    assert written == [b"", b"\x1b[2J\x1b[Hlook 1\r\n", b"\x1b[2J\x1b[Hlook 2\r\n"]


def test_an_error_of_a_question_comes_alone(tmp_path: Path) -> None:
    """It came in a group wherever nodes were asked at once, and was no UserError to who waited for one."""
    certificates(tmp_path, "operator", "operator")
    (tmp_path / "up.json").write_text(json.dumps({"cluster": "test", "routers": [], "tls": str(tmp_path)}))
    with pytest.raises(UserError, match="no router is known"):
        with_cluster(Options("", tmp_path, OutputFormat.JSON), acts())


# -- top


@pytest.fixture
def cluster(tmp_path: Path) -> ScriptedCluster:
    """Nodes with clients, sessions, counters and a slow client."""
    made = ScriptedCluster(tmp_path)
    made.put("edge-0", "slow", SlowSubscriberRow(client_id="late", by="age", value=7.0, unit="s"))
    made.put("edge-0", "stats", stats(connections=3))
    made.put("edge-1", "stats", stats(connections=4))
    made.put("storage-0", "stats", stats(sessions=5))
    return made


def stats(connections: int | None = None, sessions: int | None = None) -> StatsRow:
    counters = {'stratamq_messages_received_total{qos="1"}': 20.0}
    made = StatsRow(incarnation=1, at_ms=2_000, cpu_s=0.5, rss_bytes=1 << 20, counters=counters)
    return msgspec.structs.replace(made, connections=connections, sessions=sessions)


async def test_top_once_prints_one_table(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Each node is asked once for figures and once for slow clients; one look has no rates."""
    async with cluster.running():
        assert await cluster.command("top", "--once") == 0
        heads, edge, *_ = capsys.readouterr().out.splitlines()
        shown = dict(zip(heads.split(), edge.split(), strict=False))
        assert (shown["CLIENTS"], shown["MSG_IN/S"], shown["CPU"]) == ("3", "-", "-")
        assert cluster.asked()["edge-0"] == 2 and cluster.asked()["router-0"] == 1
        assert await cluster.command("top", "--once", "-o", "json") == 0
        seen = json.loads(capsys.readouterr().out)
    assert (seen["clients"], seen["sessions"]) == (7, 5) and seen["slow"][0]["client_id"] == "late"
