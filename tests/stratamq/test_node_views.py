"""One client, session, queue, topic or message of a running cluster on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.admin.scripted_cluster import SHARDS, ScriptedCluster
from wire.messages.client_rows import (
    ClientDetail,
    InFlightRow,
    QueuedMessageRow,
    SessionDetail,
    SessionSummaryRow,
    SubscriptionListRow,
)
from wire.messages.cluster_map import PartitionEntry, ShardEntry, partition_of
from wire.messages.node_rows import JournalRow
from wire.messages.operators import AdminReply
from wire.messages.query_kinds import columns_of
from wire.messages.topic_rows import MatchRow, ResolvedRouteRow, RouteRow, ShareMemberRow, ShareRow

ORIGIN = "edge-1/5/77"
TOPIC = "plant/1/temperature"
PARTIAL = 3  # exit code


@pytest.fixture
def cluster(tmp_path: Path) -> ScriptedCluster:
    """A client with a durable session at edge-1, whose window is full."""
    made = ScriptedCluster(tmp_path, edges=3, storages=2)
    made.map.partitions = [PartitionEntry(1, "storage-1")] * len(made.map.partitions)
    session = SessionDetail(client_id="dev7", online=True, node="edge-1", durable=True, queued=3, out=1, last_seq=14)
    made.put("storage-1", "session", session)
    made.put("edge-1", "client", ClientDetail(client_id="dev7", inflight=1, window=1, receive_maximum=1))
    made.put("storage-1", "subscriptions", SubscriptionListRow(client_id="dev7", filter="plant/#", qos=1))
    made.put("storage-1", "subscriptions", SubscriptionListRow(client_id="dev70", filter="other", qos=1))
    rows = [
        QueuedMessageRow(seq=n, topic=TOPIC, state="sent" if n == 12 else "queued", packet=4 if n == 12 else 0)
        for n in (12, 13, 14)
    ]
    rows[2].origin = ORIGIN
    made.put("storage-1", "queue", *rows)
    match = MatchRow(client_id="dev7", filter="plant/#", qos=1, durable=True, partition=1, online=True, why="")
    made.put("storage-1", "matches", match)
    for shard in range(SHARDS):
        made.map.shards[shard] = ShardEntry(1, "router-0")
    resolved = ResolvedRouteRow(
        topic=TOPIC, shard=0, owner="router-0", state="serving", partitions=[0], cached_at=["edge-0"]
    )
    made.put("router-0", "resolve", resolved)
    made.put("edge-0", "routes", RouteRow(topic=TOPIC, node="edge-0", partitions=[0], local=0))
    return made


def found(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


async def test_client_show_queries_primary_and_edge(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster.running():
        assert await cluster.command("client", "show", "dev7", "-o", "json") == 0
        view = found(capsys)
        assert view["connection"]["window"] == 1 and view["session"]["queued"] == 3 and view["complete"]
        assert dict(cluster.asked()) == {"storage-1": 1, "edge-1": 1}
        assert await cluster.command("clients", "show", "dev7") == 0
        shown = capsys.readouterr().out
        assert "asked      storage-1, edge-1" in shown and "receive_maximum" in shown


async def test_client_show_unknown_client_fails(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; with a silent primary exit code 3."""
    async with cluster.running():
        for words in (("client", "show"), ("session", "show"), ("queue", "show")):
            assert await cluster.command(*words, "nobody\x1b[31m") == 1
            said = capsys.readouterr().err
            assert "no session and no connection" in said and said.count("\n") == 1 and "\x1b" not in said
        cluster.silent.add("storage-1")
        assert await cluster.command("client", "show", "dev7", "--timeout", "0.3") == 3
        assert "storage-1: no answer in 0.3 s" in capsys.readouterr().err


async def test_a_session_and_its_queue(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster.running():
        assert await cluster.command("session", "show", "dev7", "-o", "json") == 0
        assert [row["filter"] for row in found(capsys)["subscriptions"]] == ["plant/#"]
        assert await cluster.command("queue", "show", "dev7", "--limit", "2") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[3].split()[:2] == ["SEQ", "TOPIC"] and len(lines) == 6
        assert await cluster.command("queue", "show", "dev7", "--payload", "head", "-o", "json") == 0
        assert found(capsys)["queued"] == 3 and cluster.queries[-1][1].where["payload"] == "head"
        assert await cluster.command("queue", "show", "dev7", "--payload", "full") == 2


async def test_client_explain_prints_deciding_cause(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put("edge-1", "journal", JournalRow(at_ms=5, event="drop", reason="slow", client_id="dev7", topic="x"))
    async with cluster.running():
        assert await cluster.command("client", "explain", "dev7") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "why does nothing reach 'dev7'?"
        assert (
            lines[1].startswith("=> its window is full: 1 of 1 messages of QoS 1 and 2")
            and "2 messages wait" in lines[1]
        )
        assert lines[-1].startswith("sources: the map, storage-1 now, edge-1 now; journals with 1 entry")
        del cluster.rows["storage-1", "matches"]
        assert await cluster.command("client", "explain", "dev7", "--topic", "x/y", "-o", "json") == 0
        story = found(capsys)
        assert story["cause"]["what"] == "receive_maximum" and story["steps"][1]["what"] == "no_subscription"


async def test_topic_explain_and_route_show(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster.running():
        assert await cluster.command("topic", "explain", TOPIC, "--qos", "2", "--from", "dev7") == 0
        shown = capsys.readouterr().out
        assert "'dev7' by 'plant/#' at QoS 1, lowered from 2" in shown and "is owned by router-0: serving" in shown
        look = next(look for _, look in cluster.queries if look.what == "matches")
        assert look.where == {"topic": TOPIC, "qos": "2", "near": "1", "from": "dev7"}
        assert await cluster.command("route", "show", TOPIC, "-o", "json") == 0
        route = found(capsys)
        assert route["resolved"]["cached_at"] == ["edge-0"] and route["cached"][0]["node"] == "edge-0"


async def test_topic_explain_queries_silent_edge_once(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixty sessions on it would take a minute otherwise."""
    for number in range(60):
        row = MatchRow(client_id=f"c{number}", filter="#", qos=1, durable=True, partition=1, online=True, why="")
        row.node = "edge-1"
        cluster.put("storage-1", "matches", row)
    cluster.silent.add("edge-1")
    async with cluster.running():
        assert await cluster.command("topic", "explain", TOPIC) == PARTIAL
        assert "edge-1" in capsys.readouterr().err
    assert sum(look.what == "client" for node, look in cluster.queries if node == "edge-1") == 1


async def test_explanation_prints_verdict_once(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.rows["storage-1", "matches"] = []
    cluster.rows["router-0", "resolve"] = [
        ResolvedRouteRow(topic="no/body", shard=0, owner="router-0", state="serving")
    ]
    async with cluster.running():
        assert await cluster.command("topic", "explain", "no/body") == 0
        assert capsys.readouterr().out.count("nobody gets 'no/body'") == 1
        assert await cluster.command("client", "explain", "dev7") == 0
        assert capsys.readouterr().out.count("its window is full") == 1


async def test_msg_explain_finds_a_message_in_a_queue(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """By origin with or without a topic, by queue entry, by packet, and an unknown one."""
    # The longest queue, and the only one
    cluster.put("storage-1", "sessions", SessionSummaryRow(client_id="dev7", queued=3))
    cluster.put("edge-1", "inflight", InFlightRow(client_id="dev7", direction="to", packet=4, seq=12))
    cluster.put("edge-1", "inflight", InFlightRow(client_id="dev7", direction="from", packet=9, state="unfinished"))
    async with cluster.running():
        for words in ((ORIGIN, "--topic", TOPIC), (ORIGIN,), ("--session", "dev7", "--seq", "14")):
            assert await cluster.command("msg", "explain", *words) == 0
            lines = capsys.readouterr().out.splitlines()
            assert lines[1] == "=> entry 14 in the queue of 'dev7': waits, behind 2 entries that are not acknowledged"
            assert lines[-1].startswith("missing: ledgers (not read: ")
        assert await cluster.command("msg", "explain", "--client", "dev7", "--packet", "4") == 0
        assert "entry 12 in the queue of 'dev7': sent and not acknowledged as packet 4" in capsys.readouterr().out
        assert await cluster.command("msg", "explain", "--client", "dev7", "--packet", "9") == 0
        assert "packet 9 of 'dev7' is not answered" in capsys.readouterr().out
        assert await cluster.command("msg", "explain", "edge-1/5/78") == 1
        shown = capsys.readouterr().out
        assert "=> no record of it" in shown and "the longest queues, of 1 session" in shown
        assert await cluster.command("msg", "explain", "--topic", TOPIC, "--from", "p") == 0
        assert "who gets" in capsys.readouterr().out


MANY = [word for name in columns_of("clients")[:17] for word in ("--filter", f"{name}=*")]
BAD = [
    (("topic", "explain", "a/+"), "is not a topic name"),
    (("topic", "explain", "#"), "is not a topic name"),
    (("topic", "explain", ""), "must not be empty"),
    (("topic", "explain", "x" * 65_536), "at most 65535 bytes"),
    (("route", "show", "a/#"), "is not a topic name"),
    (("client", "explain", "c", "--topic", "+"), "is not a topic name"),
    (("msg", "explain", "nonsense"), "is not an origin"),
    (("msg", "explain"), "use one of"),
    (("msg", "explain", ORIGIN, "--client", "c", "--packet", "1"), "use one of"),
    (("retained", "list", "a#"), "is not a valid topic filter"),
    (("token", "create", "ci", "--role", "boss"), "one of viewer, operator, admin"),
    (("token", "create", ""), "name is empty"),
    (("client", "list", "-o", "xml"), "-o' / '--output': 'xml' is not one of 'table'"),
    (("msg", "explain", "--client", "c"), "--client requires --packet"),
    (("msg", "explain", "--session", "c"), "--session requires --seq"),
]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("client", "show", "c" * 70_000), "client_id of 70000 characters: at most 65535"),
        (("client", "list", "--filter", f"client_id={'c' * 70_000}"), "client_id of 70000 characters: at most 65535"),
        (("client", "list", *MANY), "17 conditions: at most 16"),
    ],
    ids=["client ID", "filter", "filters"],
)
async def test_a_question_that_no_node_could_read_is_one_line(
    words: tuple[str, ...], why: str, cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: the request closed the link, and the node was reported as silent."""
    async with cluster.running():
        assert await cluster.command(*words) == 2
    assert capsys.readouterr().err == f"stratamq: {why}\n"


@pytest.mark.parametrize(("words", "why"), BAD, ids=[why for _, why in BAD])
async def test_what_cannot_be_meant_is_one_line(
    words: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 without a running cluster."""
    assert await ScriptedCluster(tmp_path).command(*words) == 2
    said = capsys.readouterr().err
    assert why in said and said.count("\n") == 1 and len(said) < 400


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("client", "show", "a/b c"), "GET /api/v1/clients/a%2Fb%20c"),
        (("client", "explain", "c", "--topic", "t"), "GET /api/v1/clients/c/explain?topic=t"),
        (("queue", "show", "c"), "GET /api/v1/sessions/c/queue?limit=100"),
        (("topic", "explain", "t", "--from", "p"), "GET /api/v1/topics/explain?topic=t&qos=1&from=p"),
        (("retained", "list", "a/+"), "GET /api/v1/retained?matches=a%2F%2B&limit=100"),
        (("slow", "--by", "window"), "GET /api/v1/slow?by=window&limit=100"),
        (("msg", "explain", ORIGIN), "GET /api/v1/messages/explain?origin=edge-1%2F5%2F77"),
    ],
)
async def test_the_call_of_the_http_service(
    words: tuple[str, ...], call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ScriptedCluster(tmp_path).command(*words, "--show-api") == 0
    assert capsys.readouterr().out == call + "\n"


async def test_a_traced_message_is_four_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: only the first request was printed."""
    assert await ScriptedCluster(tmp_path).command("msg", "send", "a/b", "hi", "--trace", "--show-api") == 0
    begun, sent, read, ended = capsys.readouterr().out.splitlines()
    assert begun.startswith("POST /api/v1/traces {") and '"pattern":"a/b"' in begun
    assert sent.startswith("POST /api/v1/messages {") and '"topic":"a/b"' in sent
    assert read.startswith("GET /api/v1/traces/send-") and ended == f"DELETE{read.removeprefix('GET')}"


async def test_a_drain_at_a_rate_is_two_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: the rate was missing."""
    words = ("node", "drain", "edge-0", "--rate", "50/s", "--show-api")
    assert await ScriptedCluster(tmp_path).command(*words) == 0
    how, order = capsys.readouterr().out.splitlines()
    assert how.startswith("POST /api/v1/nodes/edge-0/drain-clients {") and '"rate":50' in how
    assert order == "POST /api/v1/nodes/edge-0/drain"


def test_partitions_of_the_scripted_cluster_are_the_maps() -> None:
    assert 0 <= partition_of("dev7", 4) < 4


@pytest.mark.parametrize("words", [("topic", "explain", TOPIC), ("route", "show", TOPIC), ("client", "show", "dev7")])
async def test_a_router_that_has_no_map_yet_is_one_line(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    cluster.map.partitions, cluster.map.shards, cluster.map.base_shards = [], [], 0
    async with cluster.running():
        assert await cluster.command(*words) == 4
    shown, said = capsys.readouterr()
    assert said == "stratamq: the map is empty: ask again once a majority of the routers runs\n" and not shown


async def test_one_group_as_a_table(cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Filters are one field, members are rows; unknown counts are omitted. Regression: a traceback."""
    members = [ShareMemberRow("m1", online=True, queued=2), ShareMemberRow("m2", online=False, queued=0)]
    part = ShareRow(group="g", filter="a/#", members=2, queued=2, partition=0, node="storage-1", who=members)
    cluster.put("storage-1", "shares", part)
    async with cluster.running():
        assert await cluster.command("share", "show", "g") == 0
        shown = capsys.readouterr().out
        assert "filters  a/#" in shown and "m1" in shown and "m2" in shown and "delivered" not in shown


async def test_change_without_pending_nodes_omits_pending_list(
    cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs get the empty list. A refusal is one line without a table."""
    cluster.replies["user enable"] = AdminReply(0, True, {"policy_epoch": 5, "settled": True, "waits_for": []})
    refused = {"nodes": [_reply("storage-0", "no such session")], "waits_for": []}
    cluster.replies["session delete"] = AdminReply(0, False, refused, "storage-0: no such session", 1)
    async with cluster.running():
        assert await cluster.command("user", "enable", "ann") == 0
        assert capsys.readouterr().out.split() == ["policy_epoch", "5", "settled", "yes"]
        assert await cluster.command("user", "enable", "ann", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["waits_for"] == []
        assert await cluster.command("session", "delete", "c", "--yes") == 1
        shown, said = capsys.readouterr()
        assert not shown and said == "stratamq: storage-0: no such session\n"


def _reply(node: str, error: str) -> dict[str, object]:
    return {"node": node, "done": False, "count": 0, "lines": [], "error": error}
