"""The HTTP client: accepted URLs and tokens, and the request of each verb."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from access.operators.commands import VERBS, OperatorRole
from admin.api import Api, ApiCall, read_answer, read_token
from admin.http.command_paths import BODIES, PATHS, call_of
from admin.operations import EXPORT_CANCEL
from admin.scatter_gather import LinkFailed, QueryAnswered
from admin.single_query import SingleQuery, event_of, to_single_query
from conf.errors import ExitCode, UserError
from tests.patience import PATIENCE_S
from wire.messages.client_rows import QueuedMessageRow


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1",
        "ftp://localhost",
        "http://",
        "http://example.com",
        "http://10.0.0.1:18083",
        "http://[::1",
        "http://localhost/x",
    ],
)
def test_api_invalid_or_unencrypted_url_is_refused(url: str) -> None:
    """Unencrypted, a token is sent to this host only."""
    with pytest.raises(UserError) as refused:
        Api(url, "t")
    assert refused.value.exit_code == ExitCode.USAGE and "\n" not in refused.value.message


def test_addresses_of_a_service() -> None:
    for url in (
        "http://127.0.0.1:18083/",
        "http://[::1]:1/api/v1",
        "http://localhost:1",
        "https://admin.example:18083",
    ):
        assert Api(url, "t").address == url.removesuffix("/api/v1").rstrip("/")


def test_read_token_requires_private_file(tmp_path: Path) -> None:
    """A missing, public, empty or one-letter file is refused with one line."""
    file = tmp_path / "token"
    file.write_text("smq_abc\n")
    file.chmod(0o600)
    assert read_token(file) == "smq_abc"
    file.chmod(0o644)
    wrong: list[Path | None] = [None, tmp_path / "none", file, tmp_path]
    for name, content in (("empty", ""), ("words", "a letter to you"), ("long", "x" * 5_000)):
        wrong.append(tmp_path / name)
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)
    for path in wrong:
        with pytest.raises(UserError) as refused:
            read_token(path)
        assert "\n" not in refused.value.message and "letter" not in refused.value.message


@pytest.mark.parametrize(
    ("verb", "arguments", "line"),
    [
        ("client kick", {"client_id": "a/b ?", "reason": "x"}, "DELETE /api/v1/clients/a%2Fb%20%3F?reason=x"),
        ("cluster forget", {"node": "e", "dry_run": True}, "DELETE /api/v1/nodes/e?dry_run=true"),
        ("msg send", {"topic": "t", "payload": b"hello"}, 'POST /api/v1/messages {"topic":"t","payload":"aGVsbG8="}'),
        ("ring plan", {"add": ["x", "y"], "drain": []}, "GET /api/v1/ring/plan?add=x&add=y"),
        ("node list", {}, "GET /api/v1/nodes"),
    ],
)
def test_the_request_of_a_verb(verb: str, arguments: dict[str, object], line: str) -> None:
    call = call_of(verb, arguments)
    assert call is not None and call.line() == line


WITHOUT_PATH = {
    "store export": "the command publishes a manifest on a disk that it shares with the nodes",
    "token check": "the service's own question",
}


def test_every_verb_has_one_path() -> None:
    """A program with a token can do every change of the command line."""
    verbs = [row.verb for row in PATHS]
    assert len(verbs) == len(set(verbs)) and not WITHOUT_PATH.keys() & set(verbs)
    assert {*verbs, *WITHOUT_PATH} == {*VERBS}


def test_operations_cancel_needs_role_of_verb() -> None:
    """The path of operations needs one role for every verb."""
    assert {VERBS[name].role for name in ("ring abort", "node undrain", EXPORT_CANCEL)} == {OperatorRole.OPERATOR}


def test_every_path_of_a_verb_has_a_request() -> None:
    """With every argument of the verb; those in the path are not repeated."""
    for row in PATHS:
        fields = msgspec.structs.fields(VERBS[row.verb].arguments)
        given = {field.name: "x" for field in fields if field.name != "dry_run"}
        call = call_of(row.verb, {"node": "s", **given})
        assert call is not None and call.method == row.method and "{" not in call.path
        assert (call.body is not None) <= (row.method in BODIES)
    assert call_of("token check", {}) is None
    assert ApiCall.of("GET", "looks", "a/b", where="{}").line() == "GET /api/v1/looks/a%2Fb?where=%7B%7D"


def test_single_query_round_trip_keeps_event() -> None:
    """Rows with bytes, a busy node and a silent one; invalid rows count as a failed node."""
    row = QueuedMessageRow(seq=1, payload=b"\x00\xff")
    answer = QueryAnswered(0, 7, [row], "next", 0, "", 9)
    sent = msgspec.json.decode(msgspec.json.encode(to_single_query(answer)), type=SingleQuery)
    assert event_of(sent, "queue", "s", 4) == answer._replace(request=4)
    assert event_of(to_single_query(QueryAnswered(0, 7, busy_ms=20)), "queue", "s", 4) == QueryAnswered(
        4, 7, [], busy_ms=20
    )
    assert event_of(to_single_query(LinkFailed("s", "gone")), "queue", "s", 4) == LinkFailed("s", "gone")
    assert isinstance(event_of(SingleQuery([{"seq": "x"}]), "queue", "s", 4), LinkFailed)


def test_api_long_url_error_has_remedy() -> None:
    """A client identifier may have 64 KiB; links can send it. The server's own response has no body."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)

        def answer() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.recv(65_536)
                stream.sendall(b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n")

        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(answer)
            api = Api(f"http://127.0.0.1:{listener.getsockname()[1]}", "smq_token")
            with pytest.raises(UserError, match=r"answered 431; .* without --api"):
                api.ask(ApiCall.of("GET", "clients", "c"), PATIENCE_S)
            answered.result()


@pytest.mark.parametrize("answer", [b"[" * 20_000, b'{"rows":' * 20_000, b'{"rows": "\xff"}', b"", b"9" * 5_000])
def test_read_answer_invalid_body_is_one_line(answer: bytes) -> None:
    """Another program may listen at that address; this ended with a traceback."""
    with pytest.raises(UserError, match="is not a service of this release"):
        read_answer("http://x", answer, dict[str, int])
