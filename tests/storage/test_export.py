"""Export and import of partitions: consistent snapshots of serving partitions, increments, refusals, a full disk."""

import random
from pathlib import Path

import pytest

from conf.errors import UserError
from storage.export.export import ExportTarget, PartitionExport, StoredCopy
from storage.export.export_run import export_store
from storage.export.importing import import_runs
from storage.export.run_rows import RowReader
from storage.state import keys
from storage.state.rows import NEVER, LocalRow, LogRow, MetaRow, QueueEntry, SessionRow, encode_entry, pack, unpack
from storage.store.settings import StoreSettings
from storage.store.store import Store
from tests.storage.requests import message
from tests.storage.storage_cluster import Cluster, with_edge
from wire.sstable.manifest import read_manifest
from wire.sstable.run_reader import iter_newest, iter_rows, merge_rows, verify_manifest
from wire.sstable.schema import COLUMN_INDEX, RowKind, row_crc

SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
PARTITION = 7
KEY, VALUE, TOMBSTONE = (COLUMN_INDEX[name] for name in ("key", "value", "tombstone"))


class Writer:
    """Writes operations to a store like a primary: rows, META row and log row in one transaction."""

    def __init__(self, path: Path, sessions: int = 40) -> None:
        self.store = Store.open(path, "c", "s1", SETTINGS)
        self.model: dict[bytes, bytes] = {}
        self.meta = MetaRow(partition_epoch=1)
        self.rng = random.Random(1)
        self.sessions = sessions

    def operate(self, changes: int = 5) -> None:
        """Change random queue rows."""
        writes: dict[bytes, bytes | None] = {}
        for _ in range(changes):
            session = PARTITION << 48 | self.rng.randrange(self.sessions)
            key = keys.queue_key(PARTITION, session, self.rng.randrange(1, 200))
            entry = QueueEntry(1, b"topic", self.rng.randbytes(20))
            writes[key] = encode_entry(entry) if self.rng.random() < 0.7 else None
        self.commit(writes)

    def commit(self, writes: dict[bytes, bytes | None]) -> None:
        """Commit one operation."""
        self.meta.op_index += 1
        writes[keys.meta_key(PARTITION)] = pack(self.meta)
        row = LogRow(1, self.meta.op_index, list(writes.items()), 1)
        self.store.write([*writes.items(), (keys.log_key(PARTITION, self.meta.op_index), pack(row))])
        for key, value in writes.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value


def export(writer: Writer, folder: Path, since: int | None = None, *, busy: bool = False) -> PartitionExport:
    """Export; with busy, operations are committed between all steps."""
    folder.mkdir(parents=True, exist_ok=True)
    target = ExportTarget(folder, folder, "s1", 1_000_000)
    done = PartitionExport(StoredCopy(PARTITION, writer.store), target, since=since)
    for step in done.steps():
        if busy:
            writer.operate()
        if step is not None:
            step()
    return done


def contents(*exports: tuple[Path, PartitionExport]) -> dict[bytes, bytes]:
    """Return the newest versions of the rows in the runs."""
    runs = [iter_rows(folder / entry.path) for folder, done in exports for entry in done.files]
    return {row[KEY]: row[VALUE] for row in merge_rows(runs) if not row[TOMBSTONE]}


def test_export_of_a_small_partition_is_one_run(tmp_path: Path) -> None:
    """Read in one slice: the state at one op_index, despite concurrent changes."""
    writer = Writer(tmp_path / "store")
    for _ in range(20):
        writer.operate()
    expected, op_index = dict(writer.model), writer.meta.op_index
    done = export(writer, tmp_path / "runs", busy=True)
    assert len(done.files) == 1
    assert (done.op_index, done.full) == (op_index, True)
    assert contents((tmp_path / "runs", done)) == expected


def test_export_of_a_changing_partition_is_consistent(tmp_path: Path) -> None:
    """Slices and the op log together are the state at the export's op_index."""
    writer = Writer(tmp_path / "store", sessions=30)
    for _ in range(300):
        writer.operate(20)
    models = {writer.meta.op_index: dict(writer.model)}
    commit = writer.commit

    def remembered(writes: dict[bytes, bytes | None]) -> None:
        commit(writes)
        models[writer.meta.op_index] = dict(writer.model)

    writer.commit = remembered  # type: ignore[method-assign]
    done = export(writer, tmp_path / "runs", busy=True)
    assert len(done.files) == 2
    assert done.op_index > min(models)
    assert contents((tmp_path / "runs", done)) == models[done.op_index]


def test_incremental_export_and_base_equal_the_state(tmp_path: Path) -> None:
    """Newest version per key and tombstones; after a trimmed log the export is full and reports it."""
    writer = Writer(tmp_path / "store")
    for _ in range(30):
        writer.operate()
    base = export(writer, tmp_path / "base")
    for _ in range(30):
        writer.operate()
    more = export(writer, tmp_path / "more", since=base.op_index)
    assert not more.full
    assert any(row[TOMBSTONE] for row in iter_rows(tmp_path / "more" / more.files[0].path))
    assert contents((tmp_path / "base", base), (tmp_path / "more", more)) == writer.model
    assert not export(writer, tmp_path / "nothing", since=more.op_index).files
    writer.store.write([(keys.local_key(PARTITION), pack(LocalRow(log_start=base.op_index + 2)))])
    cut = export(writer, tmp_path / "cut", since=base.op_index)
    assert (cut.full, cut.cut) == (True, True)
    assert contents((tmp_path / "cut", cut)) == writer.model


def test_export_of_a_session_fills_its_columns() -> None:
    """Served clock to wall clock, cumulative acknowledgement and gaps."""
    reader = RowReader(PARTITION, 1_000_000, 5_000, lambda _: None)
    row = SessionRow("me", 1 << 32 | 3, 60, deadline=65_000, head=4, gaps=[6, 8])
    found = reader.row(keys.session_key(PARTITION, 9), pack(row), 11, 1)
    value = {name: found[index] for name, index in COLUMN_INDEX.items()}
    assert (value["kind"], value["client_id"], value["expiry_ms"]) == (RowKind.SESSION, "me", 1_060_000)
    assert (value["acked_up_to"], value["acked_gaps"], value["owner_epoch"]) == (3, [6, 7], 1 << 32 | 3)


def test_row_reader_batch_matches_single_rows() -> None:
    """The batch path gives the same rows; the CRC is that of the format."""
    session = PARTITION << 48 | 1
    entries = [
        QueueEntry(1, b"t", b"x", deadline=65_000, origin_a=0xABC, origin_b=7),
        QueueEntry(2, b"t", b"x", state=1, packet_identifier=9, deadline=NEVER),
        QueueEntry(3, b"t", b"", body=77),
        QueueEntry(4, b"t", b"x", deadline=1),
    ]
    found = [
        (keys.meta_key(PARTITION), pack(MetaRow(1, 5))),
        *((keys.queue_key(PARTITION, session, entry.session_seq), encode_entry(entry)) for entry in entries),
        (keys.session_key(PARTITION, session), pack(SessionRow("me", 1, 60))),
        (keys.body_key(PARTITION, 77, 0), b"y" * 300),
    ]
    reader = RowReader(PARTITION, 1_000, 5_000, lambda _: None)
    together = reader.rows(found, 11, 2)
    assert together == [reader.row(key, value, 11, 2) for key, value in found]
    crcs = [row[COLUMN_INDEX["crc"]] for row in together]
    assert crcs == [row_crc(key, value, 11) for key, value in found]


def exported(tmp_path: Path) -> Path:
    """Return a folder with a manifest of a store with one session and a partly consumed queue."""
    writer = Writer(tmp_path / "source" / "store")
    session, client = PARTITION << 48 | 1, next(f"c{n}" for n in range(9999) if _partition(f"c{n}") == PARTITION)
    writes: dict[bytes, bytes | None] = {keys.session_key(PARTITION, session): pack(SessionRow(client, 1, 60, head=3))}
    for number in range(1, 6):
        writes[keys.queue_key(PARTITION, session, number)] = encode_entry(QueueEntry(number, b"t", b"x"))
    writer.commit(writes)
    writer.store.close()
    export_store(tmp_path / "source" / "store", tmp_path / "runs", None, 1_000, lambda _: None)
    assert not verify_manifest(tmp_path / "runs")
    return tmp_path / "runs"


def _partition(client_id: str) -> int:
    from zlib import crc32

    return crc32(client_id.encode()) % 256


def load(runs: Path, store: Path, cluster: str = "c") -> None:
    """Import."""
    import_runs(runs, store, (cluster, "s2"), SETTINGS, lambda _: None)


def test_import_omits_consumed_entries(tmp_path: Path) -> None:
    """The op_index continues, the history does not; consumed entries are omitted; a former store is kept."""
    runs = exported(tmp_path)
    path = tmp_path / "target" / "store"
    Store.open(path, "c", "s2", SETTINGS).close()
    load(runs, path)
    store = Store.open(path, "c", "s2", SETTINGS)
    try:
        start, stop = keys.kind_range(PARTITION, keys.QUEUE)
        assert [int.from_bytes(key[-8:], "big") for key, _ in store.scan(start, stop, 10)] == [3, 4, 5]
        meta = unpack(MetaRow, store.get(keys.meta_key(PARTITION)) or b"")
        local = unpack(LocalRow, store.get(keys.local_key(PARTITION)) or b"")
        assert (meta.op_index, meta.partition_epoch, local.log_start) == (1, 0, 2)
    finally:
        store.close()
    assert (path.parent / "store.quarantined-1").exists()


def test_import_refuses_damaged_or_foreign_runs(tmp_path: Path) -> None:
    """With the file and the reason; the existing store is unchanged."""
    runs = exported(tmp_path)
    path = tmp_path / "target" / "store"
    with pytest.raises(UserError, match="of cluster 'c', the store of 'other'"):
        load(runs, path, "other")
    run = runs / read_manifest(runs).files[0].path
    data = bytearray(run.read_bytes())
    data[len(data) // 2] ^= 1
    run.write_bytes(data)
    with pytest.raises(UserError, match=f"{run.name}: sha256"):
        load(runs, path)
    run.unlink()
    with pytest.raises(UserError, match=f"{run.name}: missing"):
        load(runs, path)
    with pytest.raises(UserError, match="no manifest"):
        load(tmp_path / "empty", path)
    assert not path.exists()
    assert not list(path.parent.glob("*importing*"))


def test_import_refuses_an_increment_without_its_base(tmp_path: Path) -> None:
    """With an instruction."""
    runs = exported(tmp_path)
    store, absent = tmp_path / "source" / "store", tmp_path / "absent"
    with pytest.raises(UserError, match=f"--since {absent}: No such file or directory; name the manifest of"):
        export_store(store, runs, absent, 2_000, lambda _: None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no manifest in .*; name the manifest"):
        export_store(store, runs, tmp_path / "empty", 2_000, lambda _: None)
    with pytest.raises(UserError, match="pass the newest manifest"):
        export_store(store, tmp_path / "elsewhere", runs, 2_000, lambda _: None)


def test_iter_newest_of_an_offline_export_returns_the_stored_rows(tmp_path: Path) -> None:
    """The importer reads the rows of the store."""
    runs = exported(tmp_path)
    rows = list(iter_newest(runs, read_manifest(runs), PARTITION))
    assert [row[KEY][2:3] for row in rows] == [keys.META, *[keys.QUEUE] * 5, keys.SESSION]


def test_full_disk_refuses_messages_and_acknowledges_repeats() -> None:
    """Before they get an operation, counted; stored messages are acknowledged again."""
    cluster, edge = with_edge()
    alice = edge.open("alice", "a/#")
    edge.publish(message("kept"), alice.session >> 48)
    cluster.settle()
    core = cluster.nodes["s1"].core
    cluster.nodes["s1"].disk.full = True
    refused = edge.publish(message("refused"), alice.session >> 48)
    cluster.settle()
    assert edge.acked[refused] == 0x89  # distinct from a policy's refusal; publishers get 0x97
    assert core.counts["refused_store_full"] == 1
    cluster.nodes["s1"].disk.full = False
    tag = edge.publish(message("taken"), alice.session >> 48)
    cluster.settle()
    assert edge.acked[tag] == 0
    assert [push.payload for push in alice.received] == [b"kept", b"taken"]


def test_refusal_by_a_full_disk_supersedes_older_connections() -> None:
    """Its older copy, in a delayed frame of the former edge, arrives when there is space again."""
    cluster = Cluster()
    former, newer = cluster.edges["e1"], cluster.edges["e2"]
    alice = newer.open("alice", "a/#")
    cluster.nodes["s1"].disk.full = True
    refused = newer.publish(message("m", session=77, owner_epoch=2), alice.session >> 48)
    cluster.settle()
    assert newer.acked[refused] == 0x89
    cluster.nodes["s1"].disk.full = False
    stuck = former.publish(message("m", session=77, owner_epoch=1), alice.session >> 48)
    cluster.settle()
    assert former.acked[stuck] == 0x8E
    assert alice.received == []
