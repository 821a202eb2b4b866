"""Lists of a running cluster on the command line: requests, output, and messages on stderr."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from admin.queries import SLOW_BY
from edge.queries.slow import MEASURES as EDGES
from storage.queries.copies import MEASURES as STORAGES
from stratamq.cli import client as client_commands
from stratamq.cli import node_requests, operation
from stratamq.cli.cells import duration, plain_row, shown_cell
from stratamq.cli.main import main
from stratamq.cli.nouns import NOUNS
from stratamq.cli.rates import DELIVERED, RECEIVED, rate_of
from tests.admin.scripted_cluster import ScriptedCluster
from wire.messages.client_rows import ClientRow, SessionSummaryRow
from wire.messages.cluster_map import PartitionEntry
from wire.messages.hello import TIER_EDGE, TIER_STORAGE
from wire.messages.node_rows import DropRow, SlowSubscriberRow, StatsRow
from wire.messages.operators import AdminReply
from wire.messages.query_kinds import columns_of
from wire.messages.topic_rows import ShareRow

HOSTILE = '<img src=x onerror=alert(1)>\x1b[31m\u202e"\n'


def clients(edge: int, count: int) -> list[ClientRow]:
    return [
        ClientRow(client_id=f"c{edge}-{n}", user="ann", node=f"edge-{edge}", connected_at_ms=1_700_000_000_000 + n)
        for n in range(count)
    ]


@pytest.fixture
def cluster(tmp_path: Path) -> ScriptedCluster:
    made = ScriptedCluster(tmp_path)
    for edge in range(2):
        made.put(f"edge-{edge}", "clients", *clients(edge, 3))
    return made


def test_every_noun_names_columns_of_its_kind() -> None:
    for name, noun in NOUNS.items():
        known = columns_of(noun.what)
        assert not {*noun.columns, *noun.wide, *([noun.best] if noun.best else [])} - {*known}, name


async def test_clients_of_all_edges_are_one_list(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster.running():
        assert await cluster.command("clients", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["CLIENT_ID", "USER", "STATE", "NODE"]
    assert [line.split()[0] for line in lines[1:]] == ["c0-0", "c0-1", "c0-2", "c1-0", "c1-1", "c1-2"]
    assert set(cluster.asked()) == {"edge-0", "edge-1"}


async def test_every_form_has_the_same_rows(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and YAML include missing nodes; times are ISO 8601."""
    found: dict[str, Any] = {}
    async with cluster.running():
        for form in ("json", "jsonl", "yaml", "csv", "wide"):
            assert await cluster.command("client", "list", "-o", form) == 0
            found[form] = capsys.readouterr().out
    whole = json.loads(found["json"])
    assert whole == yaml.safe_load(found["yaml"])
    assert whole["complete"] and whole["partial"] == [] and whole["cursor"] == "" and whole["total_about"] == 6
    assert whole["rows"][0] == {
        "client_id": "c0-0",
        "user": "ann",
        "node": "edge-0",
        "connected_at": "2023-11-14T22:13:20.000Z",
    }
    assert [json.loads(line) for line in found["jsonl"].splitlines()] == whole["rows"]
    table = list(csv.DictReader(io.StringIO(found["csv"])))
    assert [row["client_id"] for row in table] == [row["client_id"] for row in whole["rows"]]
    assert "OWNER_EPOCH" in found["wide"].splitlines()[0]


async def test_limited_list_reports_omitted_rows_and_continues_by_cursor(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cursor is valid for this query only; --all prints all rows."""
    cluster.batch = 2
    async with cluster.running():
        assert await cluster.command("client", "list", "--limit", "4", "-o", "json") == 0
        page, said = capsys.readouterr()
        assert said == "stratamq: 4 of about 6 clients shown: --limit or --all shows more\n"
        cursor = json.loads(page)["cursor"]
        assert await cluster.command("client", "list", "-o", "jsonl", "--after", cursor) == 0
        rest = capsys.readouterr()
        assert [json.loads(line)["client_id"] for line in rest.out.splitlines()] == ["c1-1", "c1-2"] and not rest.err
        assert await cluster.command("client", "list", "-o", "jsonl", "--all", "--limit", "1") == 0
        assert len(capsys.readouterr().out.splitlines()) == 6
        asked = len(cluster.queries)
        for words in (("--filter", "user=ann"), ("--node", "edge-0")):
            assert await cluster.command("client", "list", "--after", cursor, *words) == 2
        assert await cluster.command("session", "list", "--after", cursor) == 2
        assert "belongs to another query" in capsys.readouterr().err and len(cluster.queries) == asked


async def test_a_silent_node_is_named(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, or 1 with --require-complete."""
    cluster.silent.add("edge-0")
    async with cluster.running():
        assert await cluster.command("client", "list", "-o", "json") == 3
        page, said = capsys.readouterr()
        assert said == "stratamq: result is not complete: edge-0: no answer in 1 s\n"
        found = json.loads(page)
        assert len(found["rows"]) == 3 and not found["complete"]
        assert found["partial"] == [{"node": "edge-0", "why": "no answer in 1 s"}]
        assert await cluster.command("client", "list", "--require-complete", "--timeout", "0.3") == 1
        assert "edge-0: no answer in 0.3 s" in capsys.readouterr().err


async def test_a_partition_without_primary_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ScriptedCluster(tmp_path)
    cluster.put("storage-0", "sessions", SessionSummaryRow(client_id="s", online=False, expires_in_s=-1, bytes=2048))
    cluster.map.partitions[2] = PartitionEntry(2, "")
    async with cluster.running():
        assert await cluster.command("session", "list") == 3
    page, said = capsys.readouterr()
    assert "partition 2: no primary (1 of 4)" in said
    assert page.splitlines()[1].split() == ["s", "no", "-", "-", "2", "KiB", "-", "never"]


async def test_client_names_print_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters, HTML and 64 KiB, in every format; programs get the complete value."""
    cluster = ScriptedCluster(tmp_path, edges=1)
    long = "x" * 65_535
    cluster.put("edge-0", "clients", ClientRow(client_id=HOSTILE), ClientRow(client_id=long))
    async with cluster.running():
        for form in ("table", "wide", "json", "jsonl", "yaml", "csv"):
            assert await cluster.command("client", "list", "-o", form, "--columns", "client_id") == 0
            shown = capsys.readouterr().out
            assert shown.replace("\n", "").isprintable(), form
            if form == "json":
                assert [row["client_id"] for row in json.loads(shown)["rows"]] == [HOSTILE, long]
            if form == "yaml":
                assert [row["client_id"] for row in yaml.safe_load(shown)["rows"]] == [HOSTILE, long]
            if form == "table":
                assert "(65535 characters)" in shown and len(shown) < 1_000


async def test_slow_lists_largest_rows_of_all_nodes(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """`slow` and `drops` have no cursor: each node returns its largest rows."""
    for edge, values in ((0, (5.0, 1.0)), (1, (3.0, 9.0))):
        slow = [SlowSubscriberRow(client_id=f"{edge}-{value:g}", by="ack", value=value) for value in values]
        cluster.put(f"edge-{edge}", "slow", *slow)
    cluster.put("storage-0", "drops", DropRow(reason="queue_full", count=4))
    async with cluster.running():
        assert await cluster.command("slow", "--limit", "3", "-o", "jsonl") == 0
        shown = [json.loads(line)["client_id"] for line in capsys.readouterr().out.splitlines()]
        assert shown == ["1-9", "0-5", "1-3"]
        assert await cluster.command("drops") == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["storage-0", "queue_full", "4"]


async def test_parts_of_a_group_are_one_row(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.put("edge-0", "shares", ShareRow(group="g", filter="a/#", members=2, online=2))
    cluster.put("storage-0", "shares", ShareRow(group="g", filter="a/#", members=1, queued=7, oldest_s=3.0))
    cluster.put("storage-0", "shares", ShareRow(group="h", filter="a/#", members=1, online=0))
    async with cluster.running():
        assert await cluster.command("share", "list", "-o", "jsonl") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"group": "g", "filter": "a/#", "members": 3, "online": 2, "queued": 7, "oldest_s": 3.0}
    assert rows[1]["group"] == "h"


async def test_skew_is_of_all_members_and_a_rate_of_two_questions(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of four members has most of the queue; the counter is constant, so its rate is 0."""
    cluster.put("edge-0", "shares", ShareRow(group="g", filter="a", members=3, queued=2, queued_most=1, delivered=9))
    cluster.put("storage-0", "shares", ShareRow(group="g", filter="a", members=1, queued=6, queued_most=6, delivered=6))
    async with cluster.running():
        assert await cluster.command("share", "list", "-o", "wide") == 0
    heads, row = (line.split() for line in capsys.readouterr().out.splitlines())
    shown = dict(zip(heads, row, strict=True))
    assert (shown["DELIVERED"], shown["OUT/S"], shown["SKEW"]) == ("15", "0", "3")
    assert heads.index("OUT/S") == heads.index("DELIVERED") + 1
    assert sorted(node for node, _ in cluster.queries)[::2] == ["edge-0", "edge-1", "storage-0"], "each node twice"


async def test_rate_is_queried_only_for_shown_column(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a rate column there is one query; with it, the first query has fewer columns."""
    cluster.put("edge-0", "shares", ShareRow(group="g", filter="a", members=3, delivered=9))
    async with cluster.running():
        assert await cluster.command("share", "list", "--columns", "group,delivered") == 0
        assert capsys.readouterr().out.split() == ["GROUP", "DELIVERED", "g", "9"]
        assert cluster.asked() == {"edge-0": 1, "edge-1": 1, "storage-0": 1}
        cluster.queries.clear()
        assert await cluster.command("share", "list", "--columns", "group,members,OUT/S", "-o", "csv") == 0
        assert capsys.readouterr().out == "group,members,out/s\ng,3,0.0\n"
        assert cluster.queries[0][1].columns == ["group", "filter", "delivered"]
        assert await cluster.command("share", "list", "--sort", "-out/s", "-o", "jsonl") == 0
        assert json.loads(capsys.readouterr().out)["out/s"] == 0
        assert await cluster.command("share", "list", "--columns", "group,out/s", "--show-api") == 0
        assert "columns=group%2Cdelivered&" in capsys.readouterr().out


async def test_columns_filters_and_sort_are_passed_to_nodes(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster.running():
        words = ("--columns", "client_id,connected_at", "--sort", "-client_id", "--filter", "user=a*", "-o", "csv")
        assert await cluster.command("client", "list", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "client_id,connected_at" and lines[1].startswith("c1-2,2023-11-14T22:13:20.002Z")
    _, look = cluster.queries[0]
    assert look.columns == ["client_id", "connected_at_ms"] and look.where == {"user": "a*"}


async def test_slow_clients_are_compared_by_one_measure(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """By age by default; nodes without the measure are not queried and not missing."""
    for edge in range(2):
        cluster.put(f"edge-{edge}", "slow", SlowSubscriberRow(client_id="c", by="unsent", value=1.0))
    cluster.put("storage-0", "slow", SlowSubscriberRow(client_id="s", by="queued", value=2.0))
    async with cluster.running():
        for by, asked in (("", 3), ("by=unsent", 2), ("by=queued", 1), ("by=window", 3)):
            cluster.queries.clear()
            assert await cluster.command("slow", *(("--filter", by) if by else ())) == 0
            assert len(cluster.queries) == asked
            assert {look.where["by"] for _, look in cluster.queries} == {by.removeprefix("by=") or "age"}
        capsys.readouterr()
        assert await cluster.command("slow", "--filter", "by=moon") == 2
        assert "measured by age, window" in capsys.readouterr().err


def test_each_measure_is_one_of_the_tiers() -> None:
    told = {TIER_EDGE: {*EDGES}, TIER_STORAGE: {*STORAGES}}
    for by, tier in SLOW_BY.items():
        assert all(by in measures for name, measures in told.items() if tier in ("", name)), by
    assert {*SLOW_BY} == {*EDGES, *STORAGES}


async def test_a_list_by_its_greatest_rows_and_by_a_time(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without zeros; times have their names for programs; stderr reports omitted rows."""
    rows = [SessionSummaryRow(client_id=f"s{n}", oldest_s=float(n * 7 % 5), queued=1) for n in range(5)]
    cluster.put("storage-0", "sessions", *rows)
    async with cluster.running():
        words = ("--best", "oldest_s", "--limit", "3", "--columns", "client_id", "-o", "csv")
        assert await cluster.command("session", "list", *words) == 0
        shown, said = capsys.readouterr()
        assert shown.split() == ["client_id", "s2", "s4", "s1"] and "3 of about 5 sessions shown: --limit" in said
        words = ("--sort", "-connected_at", "--columns", "client_id", "--limit", "4", "-o", "csv")
        assert await cluster.command("client", "list", *words) == 0
        assert capsys.readouterr().out.split()[1:] == ["c0-2", "c0-1", "c0-0", "c1-0"]
        assert await cluster.command("share", "list", "--best", "queued") == 2
        assert "use --sort" in capsys.readouterr().err


BAD = [
    (("--filter", "moon=1"), "unknown filter key 'moon'"),
    (("--filter", "moon=1"), "keep_alive_s, expiry_s, inflight"),  # regression: it listed connected_at_ms
    (("--filter", "connected_at=2026*"), "times cannot be filtered; sort with --sort connected_at"),
    (("--filter", "user"), "use key=value"),
    (("--filter", "user=a", "--filter", "user=b"), "already has a condition"),
    (("--columns", "moon"), "unknown column 'moon'"),
    (("--columns", "moon"), "keep_alive_s, expiry_s, connected_at, inflight"),
    (("--columns", "user,,node"), "with one comma"),
    (("--sort", "moon"), "unknown column 'moon'"),
    (("--sort", "moon", "-o", "json"), "unknown column 'moon'"),
    (("--best", "moon"), "unknown column 'moon'"),
    (("--best", "queued", "--after", "nonsense"), "cursor works in node order"),
    (("--limit", "0"), "use 1 to 100000"),
    (("--limit", "10000000"), "use 1 to 100000"),
    (("--node", "edge-9"), "no node 'edge-9' in this cluster"),
    (("--node", "storage-0"), "only edge nodes have clients"),
    (("--after", "nonsense"), "not a cursor"),
    (("--timeout", "31"), "at most 30 s"),
    (("--timeout", "0"), "at most 30 s"),
]


async def test_lines_of_a_routers_list_are_its_rows(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: it was one line with a list, and CSV of two tables."""
    page = {"policy_epoch": 2, "next": None, "tokens": [{"token": "a", "role": "viewer"}, {"token": "b"}]}
    cluster.replies["token list"] = AdminReply(0, True, page)
    async with cluster.running():
        assert await cluster.command("token", "list", "-o", "jsonl") == 0
        assert [json.loads(line)["token"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
        assert await cluster.command("token", "list", "-o", "csv", "--columns", "token") == 0
        assert capsys.readouterr().out == "token\na\nb\n"
        assert await cluster.command("token", "list", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["policy_epoch"] == 2


async def test_what_cannot_be_meant_is_one_line(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster.running():
        for words, why in BAD:
            assert await cluster.command("client", "list", *words) == 2, words
            shown, said = capsys.readouterr()
            assert why in said and said.count("\n") == 1 and not shown, words
    assert not cluster.queries


async def test_the_call_of_the_http_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ScriptedCluster(tmp_path)
    assert await cluster.command("client", "list", "--filter", "client_id=a/b*", "--node", "edge-1", "--show-api") == 0
    assert capsys.readouterr().out == "GET /api/v1/clients?client_id=a%2Fb%2A&node=edge-1&limit=100\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.25, "0.2s"), (59, "59s"), (61, "1m1s"), (3600, "1h"), (90_061, "1d1h"), (864_000, "10d")],
)
def test_durations_have_two_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_times_of_rows() -> None:
    """Ages for people, ISO 8601 for programs, including calendar limits."""
    assert shown_cell("connected_at_ms", 1_000_000, 1_060.0) == "1m ago"
    assert shown_cell("until_ms", 1_000_000, 400.0) == "in 10m"
    assert plain_row({"at_us": 1_500_000, "since_ms": 1 << 62}) == {
        "at": "1970-01-01T00:00:01.500Z",
        "since": "4.61169e+15",
    }


async def test_kick_by_filter_prints_clients_and_requires_yes(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster.running():
        assert await cluster.command("client", "kick", "--filter", "user=ann") == 2
        said = capsys.readouterr()
        assert said.out == "6 clients: c0-0, c0-1, c0-2, c1-0, c1-1, c1-2\n" and "with --yes" in said.err
        assert await cluster.command("client", "kick", "--filter", "user=ann", "--dry-run") == 0
        assert await cluster.command("client", "kick", "--filter", "client_id=x*", "--yes") == 1
        assert await cluster.command("client", "kick", "c1-0", "--filter", "user=ann") == 2
        assert await cluster.command("client", "kick", "--filter", "client_id") == 2


async def test_nodes_with_figures_of_their_own(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A table has the nodes' metrics and rates; programs get the router's rows."""
    rows = [
        {"node": "edge-0", "tier": "edge", "state": "active", "load": 0.25, "connected": 4},
        {"node": "storage-0", "tier": "storage", "state": "active", "primaries": 2, "replicas": 5, "load": 0.5},
        {"node": "edge-9", "tier": "edge", "state": "dead"},
    ]
    cluster.replies["node list"] = AdminReply(0, True, {"map_epoch": 7, "nodes": rows})
    edge = StatsRow(node="edge-0", at_ms=61_000, started_at_ms=1_000, version="1.2", connections=4, incarnation=1)
    edge.disk_bytes, edge.disk_free_bytes, edge.open_files, edge.open_files_max = 1 << 30, 1 << 28, 9, 99
    edge.counters = {'stratamq_messages_received_total{qos="1"}': 10.0}
    later = StatsRow(node="edge-0", at_ms=63_000, started_at_ms=1_000, version="1.2", connections=4, incarnation=1)
    later.counters = {'stratamq_messages_received_total{qos="1"}': 50.0}
    storage = StatsRow(node="storage-0", gauges={'stratamq_partition_lag_ops{partition="1"}': 3.0})
    assert [rate_of(RECEIVED, edge, later), rate_of(DELIVERED, edge, later)] == [20.0, None]
    cluster.put("edge-0", "stats", edge)
    cluster.put("storage-0", "stats", storage)
    async with cluster.running():
        assert await cluster.command("node", "list", "-o", "wide") == 0
        heads, first, second, third = (line.split("  ") for line in capsys.readouterr().out.splitlines()[2:])
        names = [name.strip() for name in heads if name]
        assert names[:7] == ["NODE", "TIER", "STATE", "VERSION", "UPTIME", "CONNS", "MSG_IN/S"]
        assert names[7:16] == ["MSG_OUT/S", "PARTITIONS", "LOAD", "DISK", "TERM", "LAG", "TLS_EXPIRES", "RSS", "FD"]
        assert {"1.2", "1m", "25% of 1 GiB free", "9/99"} <= {cell.strip() for cell in first}
        assert "2/3" in {cell.strip() for cell in second} and "dead" in {cell.strip() for cell in third}
        assert await cluster.command("node", "list", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["nodes"] == rows
        cluster.silent.add("edge-0")
        assert await cluster.command("node", "list", "--filter", "tier=edge") == 3
        assert "edge-0: no answer" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("client", "show", "c"), ("node", "list"), ("ban", "list"), ("operation", "list")])
def test_watch_repeats_read_commands(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look(*_: object, **__: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        raise typer.Exit(3)

    monkeypatch.setattr(node_requests, "ask_links", look)
    for module in (client_commands, operation):
        monkeypatch.setattr(module, "with_cluster", look)
    assert main([*words, "--watch", "--every", "0.1"]) == 130
    assert looks == 3
