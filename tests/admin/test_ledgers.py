"""One message in ledgers: real files of an edge and a storage node, read like `msg explain --ledger`."""

import gzip
from pathlib import Path

import pytest

from admin.explain.ledgers import NoLedger, read_ledgers
from admin.explain.message import Evidence, explain_message
from wire.queries.origins import parse_origin
from wire.sstable.ledger import FileLedger, LedgerOperation, LedgerRecord

ORIGIN = "edge-1/1795358845149/4711"
SESSION = 7 << 48 | 12
AT = 1_700_000_000_000  # 22:13:20 UTC
MARK = "@edge-1"


def ledger(folder: Path, node: str, tier: str) -> FileLedger:
    return FileLedger(folder / node, node, 1, tier, AT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return ledgers in which edge-1 acknowledged the message; storage-0 has it as entries 3 and 9 of a session."""
    edge = ledger(tmp_path, "edge-1", "edge")
    edge.acks(AT, "edge-1", b"[0,1795358845149,4711,1,%d,99,7,31],[0,1795358845149,4712,1,%d,99]," % (AT, AT), 2)
    storage = ledger(tmp_path, "storage-0", "storage")
    storage.began(AT, 7, 2, 100)
    taken: list[tuple[int | str, ...]] = [(0, 1_795_358_845_149, 4711, MARK, 1, SESSION, 3, SESSION + 1, 9)]
    storage.operation(LedgerOperation(7, 50, 1, taken))
    storage.operation(LedgerOperation(7, 101, 1, [(0, 1_795_358_845_149, 4711, MARK, 1, SESSION, 77)]))  # never existed
    storage.flush(AT)
    storage.record(LedgerRecord("dropped", AT + 5_000, p=7, op=60, pe=1, s=SESSION + 1, n=9, r="queue full"))
    storage.operation(LedgerOperation(7, 70, 1, [], [(SESSION, 1, 4)]))
    storage.close(AT + 9_000)
    edge.close(AT + 9_000)
    return tmp_path


def test_read_ledgers_returns_acknowledgement_and_entries(folder: Path) -> None:
    """In path order; operations that a later epoch found uncommitted are omitted."""
    assert any(path.suffix == ".gz" for path in folder.rglob("*"))
    found = read_ledgers(folder, ORIGIN)
    story = explain_message(ORIGIN, Evidence(recorded=found.steps, had=[found.had], lacked=found.lacked))
    assert [(step.node, step.what) for step in story.steps] == [
        ("storage-0", "committed"),
        ("storage-0", "acked"),
        ("edge-1", "acknowledged"),
        ("storage-0", "dropped"),
    ]
    text = "\n".join(step.why for step in story.steps)
    assert "in partition 7 as operation 50, queued for session 7-12 as entry 3, session 7-13 as entry 9" in text
    assert "received at 22:13:20 UTC with QoS 1, and acknowledged to its publisher for partitions 7, 31" in text
    assert "the client of session 7-12 acknowledged entry 3 (operation 70)" in text and "77" not in text
    assert story.verdict == "its ledger: entry 9 of session 7-13 was dropped: queue full"
    assert "ledger files in" in story.had[0]


def test_another_message_and_no_ledgers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No step without a file; a folder without ledgers is a missing source."""
    assert read_ledgers(folder, "edge-1/1795358845149/471").steps == []
    other = read_ledgers(folder, "edge-1/1795358845149/4712")
    assert [step.why for _, step in other.steps] == [
        "its ledger: received at 22:13:20 UTC with QoS 1, and acknowledged to its publisher for no partition"
    ]
    empty = tmp_path_factory.mktemp("none")
    assert [missing.node for missing in read_ledgers(empty, ORIGIN).lacked] == ["ledgers"]


def test_read_ledgers_incomplete_file_is_read(folder: Path) -> None:
    """An incomplete line, and an incomplete compressed file."""
    (folder / "edge-2").mkdir()
    line = b'{"e":"acks","t":1,"o":"edge-2","k":[[0,1795358845149,4711,1,1,2]]}\n'
    (folder / "edge-2" / "edge-2-1-000001.jsonl.open").write_bytes(line + line[:40])
    (folder / "edge-2" / "edge-2-1-000000.jsonl.gz").write_bytes(gzip.compress(line * 5)[:-9])
    assert "edge-2" in {step.node for _, step in read_ledgers(folder, ORIGIN).steps}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [(ORIGIN, (0, 1_795_358_845_149, 4711)), ("session/7-12/9", (1, SESSION, 9)), ("will/3/4", (2, 3, 4))],
)
def test_origin_round_trip(text: str, numbers: tuple[int, int, int]) -> None:
    assert parse_origin(text) == numbers


@pytest.mark.parametrize(
    "line",
    [
        b'{"e":"acks","k":[7,[0,1,2,1]],"o":[0,1,2,0]}',
        b'{"e":"operations","b":[{"m":[[0,1,2,1]]}],"x":[0,1,2,0]}',
        b'{"e":"operations","b":9,"x":[0,1,2,0]}',
        b'{"e":"began","p":[1],"pe":1,"op":1}',
    ],
)
def test_read_ledgers_invalid_file_is_named(folder: Path, line: bytes) -> None:
    """One line, for any content."""
    path = folder / "edge-9" / "zz.jsonl"
    path.parent.mkdir()
    path.write_bytes(line + b"\n")
    with pytest.raises(NoLedger, match=r"zz\.jsonl: a line is not a ledger record"):
        read_ledgers(folder, "edge-0/1/2")


def test_read_ledgers_invalid_origin_is_refused(folder: Path) -> None:
    with pytest.raises(NoLedger, match="is not an origin"):
        read_ledgers(folder, "what/\x1b[2J")
