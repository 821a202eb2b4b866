"""Questions about a real cluster: lists, one client, a node that is stopped, and "where is my message"."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from stratamq.cli.cluster_requests import with_cluster
from stratamq.cli.node_requests import Options
from stratamq.cli.output import OutputFormat
from stratamq.cli.router_lists import COLUMNS
from tests.e2e.operated_cluster import WAIT_S, OperatedCluster, operated_cluster
from tests.patience import PATIENCE_S
from tests.turn_time import assert_within, timed

QUEUE_MAX = 5
LEASE_S = 8  # until its lease expires a stopped node is queried and named; then the map marks it dead


def cause_of(place: OperatedCluster, *words: str) -> tuple[str, str]:
    answer = place.ask(*words)
    assert answer.code == 0, answer
    cause = answer.shown["cause"]
    return (cause["what"], cause["why"]) if cause else ("", "")


@pytest.fixture(scope="module")
def place() -> Iterator[OperatedCluster]:
    options = ("--set", f"storage.queue_messages_max={QUEUE_MAX}", "--set", f"router.lease_s={LEASE_S}")
    with operated_cluster("--edges", "2", "--storages", "2", *options) as here:
        yield here


def test_lists_of_a_real_cluster(place: OperatedCluster) -> None:
    """Clients of both edges, stored sessions, their queues and subscriptions."""
    publisher = place.come("list-publisher", 0)
    away = place.come("list-away", 1, expiry_s=3600)
    place.subscribe(away, "list/#")
    away.disconnect()
    place.cluster.wait_for(lambda: not away.is_connected(), "gone", WAIT_S)
    place.come("list-other", 1)
    place.publish(publisher, "list/1", 3)
    clients = {row["client_id"]: row["node"] for row in place.rows("client", "list", "--filter", "client_id=list-*")}
    assert clients == {"list-publisher": "edge-0", "list-other": "edge-1"}
    addresses = [row["address"] for row in place.rows("client", "list", "--filter", "client_id=list-*")]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses), addresses
    (session,) = place.rows("session", "list", "--filter", "client_id=list-away")
    assert session["queued"] == 3 and not session["online"]
    (held,) = place.rows("subscription", "list", "--filter", "client_id=list-away")
    assert held["filter"] == "list/#" and held["durable"]
    place.subscribe(place.come("list-member", 1, expiry_s=60), "$share/g/list/#")
    assert len(place.rows("subscription", "list", "--filter", "client_id=list-member")) == 1
    queue = place.ask("queue", "show", "list-away").shown["entries"]
    assert [entry["topic"] for entry in queue] == ["list/1"] * 3
    assert [row["filter"] for row in place.ask("subscription", "show", "list-away").shown["subscriptions"]] == [
        "list/#"
    ]
    group = place.ask("share", "show", "g").shown
    assert [(row["client_id"], row["queued"]) for row in group["members"]] == [("list-member", 0)]
    nobody = place.ask("share", "show", "h")
    assert nobody.code == 1 and "no shared group 'h'" in nobody.said
    view = place.ask("client", "show", "list-other").shown
    assert view["connection"]["node"] == "edge-1" and len(view["asked"].split(", ")) == 2
    origin = queue[2]["origin"]
    what, why = cause_of(place, "msg", "explain", origin, "--topic", "list/1")
    assert what == "queued" and "behind 2 entries" in why, why
    assert "absent" in cause_of(place, "client", "explain", "list-away")


def test_explain_publish_without_subscriber_names_near_miss(place: OperatedCluster) -> None:
    """No client receives it; the filter that misses it by one level is named."""
    here = place.come("wrong-topic")
    place.subscribe(here, "plant/1/temperature")
    what, why = cause_of(place, "topic", "explain", "nobody/listens")
    assert what == "nobody" and "no subscription meets it" in why
    (origin,) = place.origins(place.come("nobody-publisher", origins=True), "nobody/listens")
    assert cause_of(place, "msg", "explain", origin, "--topic", "nobody/listens")[0] == "nobody"
    what, why = cause_of(place, "client", "explain", "wrong-topic", "--topic", "plant/1/pressure")
    assert what == "no_subscription" and "'plant/1/temperature' misses it by one level" in why


def test_settings_and_copies_of_running_nodes(place: OperatedCluster) -> None:
    """A node's settings, the differences of two nodes, copies, and storage metrics; each mistake is one line."""
    shown = place.ask("config", "show", "--node", "storage-1", "--effective").shown
    queue_max = next(row for row in shown if row["setting"] == "storage.queue_messages_max")
    assert queue_max["value"] == str(QUEUE_MAX) and queue_max["source"].startswith("--set")
    known = {row["name"]: row for row in place.rows("config", "list", "--node", "storage-1", "--all")}
    bound, level = known["storage.queue_messages_max"], known["logs.level"]
    assert (bound["default"], bound["needs_restart"]) == ("10000", True) and not level["needs_restart"]
    assert "default" not in level, "its value is the default"
    values = {row["value"] for row in place.rows("config", "list", "--node", "edge-0", "--all")}
    assert "true" in values and not {"True", "None"} & values, "as a file has them, and not as Python does"
    assert place.ask("config", "diff").code == place.ask("config", "diff", "edge-0", "edge-1").code == 0
    differing = place.ask("config", "diff", "edge-0", "storage-0")
    assert differing.code == 1 and "storage.queue_messages_max" in {row["setting"] for row in differing.shown}
    copies = place.rows("store", "replicas", "--all")
    assert {row["node"] for row in copies} == {"storage-0", "storage-1"} and any(row["in_sync"] for row in copies)
    assert [row["node"] for row in place.rows("store", "stats")] == ["storage-0", "storage-1"]
    for words in (("show",), ("show", "edge", "--node", "edge-0"), ("show", "--node", "edge-9"), ("diff", "edge-0")):
        refused = place.ask("config", *words)
        assert refused.code == 2 and refused.said.count("\n") == 1, refused


def test_listener_paused_and_resumed(place: OperatedCluster) -> None:
    """It alone refuses new clients; connected ones stay."""
    here = place.come("paused-stays", 0)
    assert place.ask("listener", "pause", "plain", "--node", "edge-0", "--dry-run").code == 0
    states = {row["node"]: row["state"] for row in place.rows("listener", "list", "--filter", "listener=plain")}
    assert states == {"edge-0": "open", "edge-1": "open"}
    try:
        done = place.ask("listener", "pause", "plain", "--node", "edge-0")
        assert done.code == 0 and done.shown["nodes"][0]["lines"][0] == "state paused"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", place.cluster.port(0, "plain")), PATIENCE_S)
        place.come("paused-elsewhere", 1)
        assert here.is_connected()
        states = {row["node"]: row["state"] for row in place.rows("listener", "list", "--filter", "listener=plain")}
        assert states == {"edge-0": "paused", "edge-1": "open"}
    finally:
        assert place.ask("listener", "resume", "plain").code == 0
    place.come("paused-again", 0)
    nobody = place.ask("listener", "pause", "nowhere")
    assert nobody.code == 1 and "no edge has a listener 'nowhere'" in nobody.said


def test_long_operation_listed_and_cancelled(place: OperatedCluster) -> None:
    """A drain is one operation for all operators; when it is cancelled, the edge accepts clients again."""
    assert not any(row["kind"] == "drain" for row in place.ask("operation", "list").shown)
    assert place.ask("node", "drain", "edge-1", "--no-wait").code == 0
    try:
        (drain,) = place.ask("operations", "list", "--filter", "kind=drain").shown
        assert (drain["id"], drain["unit"], drain["cancel"]) == ("drain-edge-1", "clients", "node undrain")
        assert place.ask("operation", "show", "drain-edge-1").shown["node"] == "edge-1"
        assert place.ask("operation", "cancel", "drain-edge-1", "--dry-run").shown["would"] == "node undrain"
        assert place.ask("operation", "list", "--filter", "kind=drain").shown
    finally:
        assert place.ask("operation", "cancel", "drain-edge-1").code == 0
    assert not place.ask("operation", "list", "--filter", "kind=drain").shown
    for words in (("show", "drain-edge-1"), ("cancel", "rebalance-99"), ("list", "--filter", "colour")):
        refused = place.ask("operation", *words)
        assert refused.code in (1, 2) and refused.said.count("\n") == 1, refused


def test_router_lists_have_filters_columns_and_limits(place: OperatedCluster) -> None:
    """Over the pages of a router; each list, also an empty one, has the requested columns."""
    assert place.ask("group", "list", "--columns", "colour").code == 2, "it has no row yet"
    for number in range(5):
        assert (
            place.ask("ban", "add", "user", f"banned-{number}", "--reason", "odd" if number % 2 else "even").code == 0
        )
    for name in ("zoe", "yan"):
        assert place.ask("user", "add", name, "--no-password", "--role", "reader").code in (0, 1)
    banned = place.ask("ban", "list", "--limit", "2")
    assert [row["value"] for row in banned.shown["bans"]] == [
        "banned-0",
        "banned-1",
    ] and "2 bans shown" in banned.said
    rest = place.ask("ban", "list", "--after", banned.shown["next"]).shown
    assert [row["value"] for row in rest["bans"]] == ["banned-2", "banned-3", "banned-4"] and rest["next"] is None
    odd = place.ask("ban", "list", "--filter", "reason=o*", "--columns", "value")
    assert odd.shown["bans"] == [{"value": "banned-1"}, {"value": "banned-3"}] and not odd.said
    first = place.ask("ban", "list", "--filter", "reason=e*", "--limit", "1")
    assert len(first.shown["bans"]) == 1 and first.shown["next"] is None and "1 bans shown" in first.said
    assert len(place.ask("ban", "list", "--all").shown["bans"]) == 5
    chosen = ("--filter", "primary=storage-0", "--columns", "partition,primary")
    own = place.ask("ring", "show", *chosen).shown["partitions"]
    assert own and {row["primary"] for row in own} == {"storage-0"} and [*own[0]] == ["partition", "primary"]
    whole = place.ask("ring", "show").shown
    assert len(whole["partitions"]) > len(own) and whole["shards"]
    cut = place.ask("ring", "show", "--limit", "3")
    assert len(cut.shown["partitions"]) == 3 and "shards" not in cut.shown and "3 of" in cut.said
    for words, what in (
        (("ban", "list"), "bans"),
        (("user", "list"), "users"),
        (("node", "list"), "nodes"),
        (("membership", "list"), "members"),
        (("ring", "show"), "partitions"),
    ):
        rows = place.ask(*words).shown[what]
        assert not {name for row in rows for name in row} - {*COLUMNS[what]}, words
        for option in ("--columns=colour", "--filter=colour=red"):
            wrong = place.ask(*words, option)
            assert wrong.code == 2 and wrong.said.count("\n") == 1 and "'colour': use one of" in wrong.said, wrong


def test_publisher_receives_origins_of_its_messages(place: OperatedCluster) -> None:
    """PUBACK has the argument of `msg explain`: of a queued message, and of a retained one without its topic."""
    away = place.come("origin-away", 1, expiry_s=3600)
    place.subscribe(away, "origin/#")
    away.disconnect()
    place.cluster.wait_for(lambda: not away.is_connected(), "gone", WAIT_S)
    publisher = place.come("origin-publisher", 0, origins=True)
    (queued,), (retained,) = place.origins(publisher, "origin/1"), place.origins(publisher, "kept/1", retain=True)
    (entry,) = place.ask("queue", "show", "origin-away").shown["entries"]
    assert entry["origin"] == queued
    assert cause_of(place, "msg", "explain", queued, "--topic", "origin/1")[0] == "queued"
    assert cause_of(place, "msg", "explain", retained)[0] == "retained"
    place.ask("session", "delete", "origin-away", "--yes")


def test_unknown_origin_gives_exit_code(place: OperatedCluster) -> None:
    """The answer is printed, and the exit code shows that no node knows the origin."""
    answer = place.ask("msg", "explain", "edge-0/1/1")
    assert answer.code == 1 and answer.shown["cause"]["what"] == "no_trace"


def test_one_command_kicks_many_clients(place: OperatedCluster) -> None:
    """It prints the number first; without --yes no client is kicked, and unselected clients stay."""
    many = [place.come(f"kicked-{number}", number % 2) for number in range(6)]
    other = place.come("kick-stays", 0)
    ended: list[int] = []
    for client in many:
        client.on_disconnect = lambda *given: ended.append(given[3].value)
        client.reconnect_delay_set(60, 60)
    code, shown, errors = place.run("client", "kick", "--filter", "client_id=kicked-*")
    assert code == 2 and shown.startswith("6 clients: kicked-0") and "with --yes" in errors
    assert place.run("client", "kick", "--filter", "client_id=kicked-*", "--dry-run")[0] == 0
    assert all(client.is_connected() for client in many)
    code, shown, errors = place.run("client", "kick", "--filter", "client_id=kicked-*", "--reason", "0x89", "--yes")
    assert (code, errors) == (0, "") and shown.endswith("6 clients were kicked\n")
    place.cluster.wait_for(lambda: len(ended) == 6, "ended", WAIT_S)
    assert ended == [0x89] * 6 and other.is_connected()
    assert place.run("client", "kick", "--filter", "client_id=kicked-*", "--yes")[0] == 1


def test_operator_sends_and_deletes_retained_messages(place: OperatedCluster) -> None:
    """The message takes a client's path, regardless of publish rules; the command first prints its effect."""
    got = place.subscribe(place.come("sent-reader", 1), "sent/#")
    story = place.ask("msg", "send", "sent/1", "tried", "--dry-run")
    assert story.code == 0 and not got
    assert place.ask("msg", "send", "sent/1", "by an operator", "--node", "edge-0").shown["nodes"][0]["count"] == 1
    assert place.ask("msg", "send", "sent/2", "kept", "--retain", "--qos", "2").code == 0
    place.cluster.wait_for(lambda: len(got) == 2, "delivered", WAIT_S)
    (kept,) = place.rows("retained", "list", "--filter", "topic=sent/*")
    assert (kept["topic"], kept["publisher"]) == ("sent/2", "$operator")
    assert place.ask("retained", "get", "sent/2").shown["payload"]
    for words in (("clear", "sent/2"), ("purge", "sent/+")):
        refused = place.ask("retained", *words)
        assert refused.code == 2 and "with --yes" in refused.said
    assert place.ask("retained", "purge", "sent/#", "--dry-run").shown == [{"topic": "sent/2", "bytes": kept["bytes"]}]
    assert place.ask("retained", "purge", "sent/#", "--yes").shown == {"cleared": 1}
    place.cluster.wait_for(lambda: got[-1] == ("sent/2", b"", False), "told", WAIT_S)
    assert not place.rows("retained", "list", "--filter", "topic=sent/*")
    assert place.ask("retained", "clear", "sent/2", "--yes").code == 1
    wrong: tuple[tuple[str, ...], ...] = (
        ("msg", "send", "a/+"),
        ("msg", "send", "$SYS/x"),
        ("retained", "purge", "a/#/b"),
        ("msg", "send", "a", "-", "--retain"),
    )
    for line in wrong:
        refused = place.ask(*line)
        assert refused.code in (1, 2) and refused.said.count("\n") == 1, refused


def test_no_local_explained(place: OperatedCluster) -> None:
    """The client published the message itself."""
    here = place.come("own-words")
    place.subscribe(here, "own/words", noLocal=True)
    what, why = cause_of(place, "msg", "explain", "--topic", "own/words", "--from", "own-words")
    assert what == "no_local" and "No Local" in why
    assert cause_of(place, "client", "explain", "own-words", "--topic", "own/words")[0] == "no_local"
    assert cause_of(place, "topic", "explain", "own/words", "--from", "another") == ("", "")


@pytest.mark.parametrize("expiry_s", [0, 3600])
def test_full_window_explained(place: OperatedCluster, expiry_s: int) -> None:
    """An ephemeral and a durable client without acknowledgements: the oldest packet, and the queue behind it."""
    name = f"window-{expiry_s}"
    slow = place.come(name, 1, expiry_s=expiry_s, receive=2, acks=False)
    place.subscribe(slow, f"{name}/#")
    *_, last = place.origins(place.come(f"{name}-publisher", origins=True), f"{name}/x", 4)
    what, why = cause_of(place, "msg", "explain", last, "--topic", f"{name}/x")
    assert (what, "behind 3 entries" in why or "2 of 2 are not" in why) == ("queued" if expiry_s else "window", True)
    what, why = cause_of(place, "client", "explain", name)
    assert what == "window" and "full since" in why and "2 of 2 messages" in why and "2 messages wait" in why, why
    setting = "storage.outbound_window_max" if expiry_s else "edge.outbound_window_max"
    assert f"(its Receive Maximum; {setting} is no smaller); the oldest is packet 1" in why, why


def test_full_queue_explained(place: OperatedCluster) -> None:
    """The oldest entries were dropped: their number, and the limit's source."""
    away = place.come("full-queue", 0, expiry_s=3600)
    place.subscribe(away, "full/#")
    away.disconnect()
    oldest, *_ = place.origins(place.come("full-publisher", origins=True), "full/x", QUEUE_MAX + 2)
    what, why = cause_of(place, "msg", "explain", oldest)
    assert what == "drop" and "for 'full-queue': queue_full" in why
    steps = place.ask("client", "explain", "full-queue").shown["steps"]
    assert {"absent", "dropped"} <= {step["what"] for step in steps}
    assert "dropped 2 messages" in next(step["why"] for step in steps if step["what"] == "dropped")
    misses = place.ask("topic", "explain", "full/x").shown["steps"]
    assert any(step["what"] == "queue_full" for step in misses)


def test_queue_bytes_equal_sum_of_sessions(place: OperatedCluster) -> None:
    """The total of the storage nodes is the sum of the sessions."""
    away = place.come("bytes-away", 0, expiry_s=60)
    place.subscribe(away, "bytes/#")
    away.disconnect()
    place.cluster.wait_for(lambda: not away.is_connected(), "gone", WAIT_S)
    place.publish(place.come("bytes-publisher", 1), "bytes/1", 3)

    def queued() -> float:
        lines = [line for node in ("storage-0", "storage-1") for line in place.cluster.metrics(node).splitlines()]
        return sum(float(line.split()[1]) for line in lines if line.startswith("stratamq_queued_bytes "))

    whole = sum(row["bytes"] for row in place.rows("session", "list", "--all"))
    assert whole > 3 * len("bytes/1")
    place.cluster.wait_for(lambda: queued() == whole, "counted", WAIT_S)
    place.ask("session", "delete", "bytes-away", "--yes")


def test_concurrent_session_delete_succeeds_once(place: OperatedCluster) -> None:
    """It ends once: at least one command succeeds, the others succeed or print one line; a later session stays."""
    for _ in range(2):
        away = place.come("deleted-twice", 0, expiry_s=3600)
        place.subscribe(away, "deleted/#")
        away.disconnect()
        place.cluster.wait_for(lambda client=away: not client.is_connected(), "gone", WAIT_S)  # type: ignore[misc]
        with ThreadPoolExecutor(3) as at_once:
            ends = [*at_once.map(lambda _: place.run("session", "delete", "deleted-twice", "--yes"), range(3))]
        codes = [code for code, _, _ in ends]
        assert 0 in codes and set(codes) <= {0, 1}, ends
        assert all("has no stored session" in errors and errors.count("\n") == 1 for code, _, errors in ends if code), (
            ends
        )
        assert place.run("session", "show", "deleted-twice")[0] == 1


def test_expired_message_explained(place: OperatedCluster) -> None:
    """Its entry is removed when the client returns: the queue shows its expiry, then the journal the removal."""
    away = place.come("expired", 0, expiry_s=3600)
    place.subscribe(away, "expired/#")
    away.disconnect()
    place.cluster.wait_for(lambda: not away.is_connected(), "gone", WAIT_S)
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.MessageExpiryInterval = 1
    publisher = place.come("expired-publisher")
    publisher.publish("expired/x", b"late", qos=1, properties=properties).wait_for_publish(WAIT_S)
    (entry,) = place.ask("queue", "show", "expired").shown["entries"]
    place.cluster.wait_for(lambda: _is_over(place, "expired"), "expired", WAIT_S)
    place.come("expired", 1, expiry_s=3600, clean=False)
    place.cluster.wait_for(lambda: cause_of(place, "client", "explain", "expired")[0] == "drop", "dropped", WAIT_S)
    assert "expired" in cause_of(place, "client", "explain", "expired")[1]
    what, why = cause_of(place, "msg", "explain", entry["origin"], "--topic", "expired/x")
    assert what == "drop" and "for 'expired': expired" in why


def _is_over(place: OperatedCluster, client_id: str) -> bool:
    entries = place.ask("queue", "show", client_id).shown["entries"]
    return not entries or entries[0]["expires_in_s"] <= 0


def test_acknowledgement_by_earlier_connection_explained(place: OperatedCluster) -> None:
    """Two clients share a client ID: the first one got the message, and it is not sent again."""
    assert place.ask("trace", "start", "topic", "twin/#", "--name", "twin", "--for", "60s").code == 0
    got = place.subscribe(place.come("twin", 0, expiry_s=3600), "twin/#")
    place.publish(place.come("twin-publisher"), "twin/x")
    place.cluster.wait_for(lambda: len(got) == 1, "delivered", WAIT_S)
    place.cluster.wait_for(lambda: not place.ask("queue", "show", "twin").shown["entries"], "acknowledged", WAIT_S)
    newer = place.come("twin", 1, expiry_s=3600, clean=False)
    place.clients[-3].loop_stop()  # the earlier one does not come back
    assert newer.is_connected()
    what, why = cause_of(place, "client", "explain", "twin")
    assert what == "takeover" and "the earlier one acknowledged" in why
    what, why = cause_of(place, "msg", "explain", "--session", "twin", "--seq", "1")
    assert what == "earlier_connection" and "'twin' acknowledged it over an earlier connection" in why
    assert place.ask("trace", "stop", "twin").code == 0
    place.publish(place.clients[-2], "twin/y")
    place.cluster.wait_for(lambda: not place.ask("queue", "show", "twin").shown["entries"], "acknowledged", WAIT_S)
    what, why = cause_of(place, "msg", "explain", "--session", "twin", "--seq", "2")
    assert what == "finished" and "entry 2 of 'twin' is not in its queue: it was acknowledged, or dropped" in why


def test_ctrl_c_during_query_exits_cleanly(place: OperatedCluster) -> None:
    """Ctrl-C during queries of two nodes raised an exception group, and the command ended with a traceback."""

    async def ask_two(_: object) -> None:
        async def interrupted() -> None:
            raise KeyboardInterrupt

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(interrupted)

    with pytest.raises(KeyboardInterrupt):
        with_cluster(Options("", place.cluster.data, OutputFormat.JSON), ask_two)


def heed() -> None:
    """Let Ctrl-C end a command: background shells start tests, and so the command, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("way", ["ctrl-c", "head"])
def test_watched_list_ends_without_traceback(place: OperatedCluster, way: str) -> None:
    """It repeats the query, as plain text in a pipe; Ctrl-C or a closed pipe ends it."""
    words = ("listener", "list", "--watch", "--every", "0.1", "--node", "edge-0", "-o", "jsonl")
    command = [*place.cluster.command_line(), *words, "--data", str(place.cluster.data)]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    assert watching.stdout is not None and watching.stderr is not None
    seen = [json.loads(watching.stdout.readline())["node"] for _ in range(9)]
    assert set(seen) == {"edge-0"}, "more than one look has"
    if way == "head":
        watching.stdout.close()
    else:
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    errors = watching.stderr.read()
    assert watching.wait(WAIT_S) in (1, 130) and "Traceback" not in errors, errors
    for wrong in ("0", "4000", "soon"):
        refused = place.run("client", "list", "--watch", "--every", wrong)
        assert refused[0] == 2 and refused[2].count("\n") == 1, refused


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_top_on_a_terminal(place: OperatedCluster, tmp_path: Path) -> None:
    """It shows nodes and slow clients, Ctrl-C or q ends it; a pipe gets lines of JSON, with rates from the second."""
    socket = ["tmux", "-S", str(tmp_path / "tmux")]
    command = [*place.cluster.command_line(), "top", "--every", "1", "--data", str(place.cluster.data)]

    def screen() -> str:
        shown = subprocess.run(
            [*socket, "capture-pane", "-p"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        return shown.stdout

    for keys in (["C-c"], ["Up", "Down", "q"]):
        subprocess.run(
            [*socket, "new-session", "-d", "-x", "80", "-y", "30", shlex.join(command)], check=True, timeout=PATIENCE_S
        )
        place.cluster.wait_for(lambda: "Ctrl-C quits" in screen(), "drawn", WAIT_S)
        drawn = screen()
        heads, *nodes = [line.split() for line in drawn.splitlines()[2:7]]
        assert {"NODE", "CLIENTS", "MSG_IN/S", "RSS"} <= {*heads} and "PRIMARIES" not in heads, drawn  # 80 columns
        assert {node[0] for node in nodes} >= {"edge-0", "router-0", "storage-0"}, drawn
        subprocess.run([*socket, "send-keys", *keys], check=True, timeout=PATIENCE_S)
        place.cluster.wait_for(lambda: not screen(), "ended", WAIT_S)
    with subprocess.Popen([*command], stdout=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        assert process.stdout is not None
        first, seen = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    assert {node["msg_in/s"] for node in first["nodes"]} == {None}
    rates = [node["msg_in/s"] for node in seen["nodes"] if node["msg_in/s"] is not None]
    assert rates and min(rates) >= 0
    assert {node["node"] for node in seen["nodes"]} >= {"edge-0", "edge-1", "router-0", "storage-0"}


@timed
def test_stopped_edge_delays_list_by_a_second(place: OperatedCluster) -> None:
    """It is named, the others are shown, and the exit code is 3; the command's start time is subtracted."""
    start_s = place.ask("client", "list", "--limit", "1").took_s
    pid = place.cluster.pid("edge-1")
    os.kill(pid, signal.SIGSTOP)
    try:
        answer = place.ask("client", "list")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert answer.code == 3 and "edge-1: no answer in 1 s" in answer.said
    assert {row["node"] for row in answer.shown["rows"]} == {"edge-0"}
    assert answer.shown["partial"] == [{"node": "edge-1", "why": "no answer in 1 s"}]
    assert_within("what a stopped edge costs a list", (answer.took_s - start_s) * 1e3, 3_000)


def test_zz_partition_without_primary(place: OperatedCluster) -> None:
    """Both storage nodes are stopped: lists name the partitions, and a client's explanation starts with its own."""
    pids = [place.cluster.pid(f"storage-{number}") for number in range(2)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:

        def named() -> bool:
            answer = place.ask("session", "list", "--timeout", "1")
            return answer.code == 3 and "no primary" in answer.said

        place.cluster.wait_for(named, "named")
        answer = place.ask("client", "explain", "list-away")
        assert answer.code == 3 and answer.shown["cause"]["what"] == "no_primary"
        answer = place.ask("msg", "explain", "edge-0/1/1", "--topic", "list/1")
        assert answer.code == 3 and answer.shown["cause"]["what"] == "no_primary"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
