"""Data written by an earlier tree that later ones must read: a store, a Raft log and an export of a small cluster.

``python -m tests.golden.old_data`` makes ``old_data.tar.xz`` and ``old_data.txt``, the dump of its content. The cluster
is simulated, so that there are sessions, queues, wills, retained messages, QoS 2 in flight both ways and a shared
subscription. The rows and entries that its storage node and its router wrote go into a real store and a real log, and
``store export`` makes the export.
"""

import io
import pprint
import tarfile
import tempfile
from pathlib import Path

import msgspec

from router.map.commands import decode_command
from router.map.machine import MapMachine
from router.raft.events import StoredRaftState
from router.raft.log import RaftLog, create_log
from router.raft.messages import CONFIG, NORMAL, decode_configuration
from storage.export.export_run import export_store
from storage.state import keys
from storage.state.rows import decode_entry, unpack
from storage.state.settings import PartitionSettings
from storage.store.settings import StoreSettings
from storage.store.store import Store
from stratamq.history.client_record import ClientOptions
from tests.golden.formats import ROWS
from tests.simulation.cluster import Cluster, Knobs
from tests.simulation.link_process import CLUSTER
from tests.simulation.router_process import RaftKnobs
from wire.sstable.manifest import read_manifest
from wire.sstable.run_reader import iter_rows, verify_manifest

__all__ = ["ARCHIVE", "DUMP", "dump", "unpack_archive"]

FOLDER = Path(__file__).parent
ARCHIVE, DUMP = FOLDER / "old_data.tar.xz", FOLDER / "old_data.txt"
SETTINGS = StoreSettings(free_space_floor_bytes=0, free_space_floor_percent=0)
NODE = "s1"
NOW_MS = 1_700_000_000_000
COUNTER_ROWS = (keys.ORIGIN, keys.INBOUND, keys.BODY)  # values that are not msgpack
STRUCT_ROWS = {
    getattr(keys, name): kind for name, kind in ROWS.items() if name != "HANDED pick"
}  # the kind's letter -> type of its values


def dump(folder: Path) -> str:
    """Open the data in a folder, read it completely, and return it as text."""
    return "\n".join(_store_lines(folder) + _raft_lines(folder) + _export_lines(folder)) + "\n"


def unpack_archive(folder: Path) -> None:
    """Unpack the archive into a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def _plain(value: object) -> object:
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def _store_lines(folder: Path) -> list[str]:
    store = Store.open(folder / "store" / "store.lsm", CLUSTER, NODE, SETTINGS)
    try:
        lines = [f"# store: commit {store.transaction_no}, acknowledged up to {store.acked_up_to}"]
        for key, value in store.scan(b"\0", None, 10_000):
            lines.append(f"{key.hex()} {_row(key, value)!r}")
    finally:
        store.close()
    return lines


def _row(key: bytes, value: bytes) -> object:
    kind = key[2:3]
    if kind == keys.QUEUE:
        return list(msgspec.structs.astuple(decode_entry(int.from_bytes(key[-8:], "big"), value)))
    if kind in COUNTER_ROWS or (kind == keys.HANDED and key.endswith(b"p")):
        return value
    return _plain(unpack(STRUCT_ROWS[kind], value))


def _raft_lines(folder: Path) -> list[str]:
    log = RaftLog(folder / "raft")
    stored = log.load()
    log.close()
    machine = MapMachine()
    lines = [f"# Raft log: {stored.storage_id}, {_plain(stored.hard_state)!r}"]
    if stored.snapshot is not None:
        machine.restore(stored.snapshot.data)
        lines += [f"snapshot {stored.snapshot.index} {stored.snapshot.term} {_plain(stored.snapshot.configuration)!r}"]
        lines += pprint.pformat(_plain(machine.map), width=118, compact=True).splitlines()
    for entry in stored.entries:
        what: object = entry.data
        if entry.kind == NORMAL:
            command = decode_command(entry.data)
            machine.apply(command)
            what = _plain(command)
        elif entry.kind == CONFIG:
            what = _plain(decode_configuration(entry.data))
        lines.append(f"{entry.index} {entry.term} {entry.kind} {what!r}")
    return [*lines, "# the map then", *pprint.pformat(_plain(machine.map), width=118, compact=True).splitlines()]


def _export_lines(folder: Path) -> list[str]:
    manifest = read_manifest(folder / "export")
    assert not verify_manifest(next((folder / "export").glob("manifest-*.json")))
    entries = [entry for number in manifest.partitions for entry in manifest.files_of(number)]
    lines = [f"# export {manifest.manifest_no} of {manifest.cluster_id}: {dict(manifest.op_index)!r}"]
    for entry in entries:
        lines.append(f"# partition {entry.partition}, {entry.rows} rows, digest {entry.digest}")
        lines += [repr(row) for row in iter_rows(folder / "export" / entry.path)]
    return lines


# --- making it


def _life() -> Cluster:
    """Run a small cluster until it has a row of every kind."""
    raft = RaftKnobs(snapshot_every=6)
    cluster = Cluster(
        "old data",
        Knobs(raft=raft, partitions=2, clock_offsets=False, partition=PartitionSettings(inline_bytes_max=64)),
    )
    cluster.start_all()
    publisher = cluster.client(
        "publisher", ClientOptions(will_topic="will/a", will_payload="gone", will_qos=1, will_delay_interval_s=600)
    )
    absent, slow = cluster.client("absent"), cluster.client("slow")
    one, other = cluster.client("one"), cluster.client("other")
    clients = (publisher, absent, slow, one, other)
    for number, client in enumerate(clients):
        client.connect(f"e{1 + number % 2}:2")
    cluster.until(lambda: all(client.connected for client in clients))
    for client, topic_filter in (
        (absent, "a/#"),
        (publisher, "a/b"),
        (slow, "a/+"),
        (one, "$share/g/b/#"),
        (other, "$share/g/b/#"),
    ):
        client.subscribe(topic_filter, 2)
        cluster.until(lambda client=client: client.subscribed)
    absent.disconnect()
    slow.acknowledging = one.acknowledging = False
    for number in range(4):
        publisher.publish("a/b", f"live {number}", 1 + number % 2)
        publisher.publish(f"b/{number}", f"for one of a group {number}", 1)
        publisher.publish(f"a/kept/{number % 2}", f"retained {number}", 1, retain=True)
        cluster.run(0.05)
    publisher.publish("a/b", "long " * 200, 1)  # its body is stored apart
    cluster.run(1.0)
    one.drop()
    cluster.run(0.5)
    publisher.publish("a/b", "not released", 2)
    for _ in range(200):
        cluster.run(0.0005)
        if any(key[2:3] == keys.INBOUND for key in cluster.storage().disk.records):
            break
    publisher.drop()
    cluster.run(0.2)
    return cluster


def _make(folder: Path) -> None:
    cluster = _life()
    rows = cluster.storage().store.scan(b"\0", None, 10_000)
    store = Store.open(folder / "store" / "store.lsm", CLUSTER, NODE, SETTINGS)
    store.write(rows)
    store.close()
    _make_log(folder / "raft", cluster.router().disk.load())
    export_store(folder / "store" / "store.lsm", folder / "export", None, NOW_MS, lambda _line: None)
    (folder / "store" / "store.lsm-lock").unlink(missing_ok=True)


def _make_log(folder: Path, stored: StoredRaftState) -> None:
    create_log(folder, stored.storage_id)
    log = RaftLog(folder)
    log.load()
    if stored.snapshot is not None:
        log.install_snapshot(stored.snapshot)
    log.write(stored.hard_state, stored.entries)
    log.sync()
    log.close()


def main() -> None:
    """Rebuild archive and dump."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make(folder)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                entry = archive.gettarinfo(path, path.relative_to(folder).as_posix())
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                with path.open("rb") as file:
                    archive.addfile(entry, file)
        ARCHIVE.write_bytes(buffer.getvalue())
    with tempfile.TemporaryDirectory() as name:
        unpack_archive(Path(name))
        DUMP.write_text(dump(Path(name)))
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes; {DUMP}: {DUMP.stat().st_size} bytes")


if __name__ == "__main__":
    main()
