"""Files as a sink: batches in Arrow's stream format, synced before they count as done, converted to Parquet.

An open file is ``<name>.arrows.open``. When it is old or large it is converted to ``<name>.parquet``, which is renamed
into place. After a crash the complete batches of an open file are converted at the next start. An incomplete batch was
not acknowledged, and is sent again.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from conf.bridge_settings import FilesSink, GatewaySettings
from conf.errors import UserError
from conf.private_files import make_private_folder
from conf.synced_folder import sync_folder
from gateways.bridges.batch_sink import BatchResult, BatchSink
from gateways.bridges.flow import BridgeFlow
from gateways.bridges.map_bridge import build_sink
from gateways.bridges.message import user_properties
from gateways.bridges.pump import SinkDelivery
from gateways.bridges.running import Bridge, BridgeFinding

__all__ = ["FileSink", "build_files"]

BATCH = 2000
BATCH_BYTES = 4 * 1024 * 1024
OPEN = ".arrows.open"


def build_files(name: str, settings: FilesSink, gateway: GatewaySettings) -> Bridge:
    """Return a bridge from the cluster to files.

    Raises:
      UserError: The folder cannot be created.
    """
    del gateway
    try:
        make_private_folder(settings.folder)
    except OSError as error:
        raise UserError(f"bridge.{name}.folder {settings.folder}: {error.strerror or error}") from None
    numbers = iter(range(1000))
    return build_sink(name, settings, True, lambda flow: FileSink(settings, name, next(numbers), flow))


class FileSink(BatchSink):
    """Sink of one flow, and one side of its bridge."""

    name = "files"

    def __init__(self, settings: FilesSink, bridge: str, member: int, flow: BridgeFlow) -> None:
        super().__init__(flow, BATCH, BATCH_BYTES)
        self._settings, self._member, self._stem = settings, member, f"{bridge}-{member}"
        self._leftover_pattern = re.compile(rf"{re.escape(bridge)}-(\d+)-\d+{re.escape(OPEN)}")
        self._arrow: Any = importlib.import_module("pyarrow")
        self._schema = self._arrow.schema(
            [
                ("at_ms", self._arrow.int64()),
                ("topic", self._arrow.string()),
                ("payload", self._arrow.binary()),
                ("qos", self._arrow.int8()),
                ("retain", self._arrow.bool_()),
                ("user_properties", self._arrow.map_(self._arrow.string(), self._arrow.string())),
                ("ref", self._arrow.string()),
                ("target", self._arrow.string()),
            ]
        )
        self._path = Path()
        self._file: Any = None
        self._writer: Any = None
        self._began = 0.0
        self._recovered = False
        self._writing = trio.Lock()

    async def run(self) -> None:
        """Write batches and rotate files until cancelled."""
        async with trio.open_nursery() as nursery:
            self.is_up, self.reason = True, ""
            nursery.start_soon(self.work, 0)
            while True:
                await trio.sleep(min(1.0, self._settings.rotate_s / 4))
                if not self._recovered or (self._file is not None and not self._queues[0] and self._is_due()):
                    await self.write(())

    def _is_due(self) -> bool:
        return time.monotonic() - self._began >= self._settings.rotate_s or (
            self._file is not None and self._file.tell() >= self._settings.rotate_bytes
        )

    async def write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        """Write and sync a batch; an empty one only rotates the file."""
        async with self._writing:
            return await trio.to_thread.run_sync(self._write, batch)

    def _write(self, batch: Sequence[SinkDelivery]) -> BatchResult:
        try:
            if not self._recovered:
                self._recover()
                self._recovered = True
            if batch:
                if self._file is None:
                    self._open()
                self._writer.write_batch(self._batch(batch))
                self._file.flush()
                os.fsync(self._file.fileno())
            if self._file is not None and self._is_due():
                self._rotate()
        except (OSError, self._arrow.ArrowException) as error:
            self._close_failed()
            return BatchResult(f"{self._settings.folder}: {getattr(error, 'strerror', None) or error}")
        return BatchResult()

    def _open(self) -> None:
        self._path = self._settings.folder / f"{self._stem}-{time.time_ns() // 1_000_000}{OPEN}"
        self._file = self._path.open("xb")
        sync_folder(self._settings.folder)
        self._writer = self._arrow.ipc.new_stream(self._file, self._schema)
        self._began = time.monotonic()

    def _close_failed(self) -> None:
        """Close a failed file: its complete batches are recovered later."""
        file, self._file, self._writer = self._file, None, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # the disk failed already
        self._recovered = False

    def _rotate(self) -> None:
        self._writer.close()
        self._file.close()
        self._file = self._writer = None
        self._to_parquet(self._path)

    def _recover(self) -> None:
        """Convert the open files of a former process; member 0 also converts those of removed members."""
        for path in sorted(self._settings.folder.iterdir()):
            found = self._leftover_pattern.fullmatch(path.name)
            if found is not None and self._member == (int(found[1]) if int(found[1]) < self._settings.shares else 0):
                self._to_parquet(path)

    def _to_parquet(self, path: Path) -> None:
        batches = []
        with path.open("rb") as file:
            try:
                reader = self._arrow.ipc.open_stream(file)
                while True:
                    batches.append(reader.read_next_batch())
            except OSError as error:
                if error.errno is not None:
                    raise  # a disk error, not Arrow's: later batches are acknowledged and must not be deleted
            except (StopIteration, self._arrow.ArrowInvalid, EOFError):
                pass  # the end, or an incomplete batch that is not acknowledged
        if batches:
            target = path.with_name(path.name.removesuffix(OPEN) + ".parquet")
            temporary = target.with_suffix(".parquet.tmp")
            table = self._arrow.Table.from_batches(batches, self._schema)
            importlib.import_module("pyarrow.parquet").write_table(table, temporary)
            with temporary.open("rb+") as written:
                os.fsync(written.fileno())
            temporary.rename(target)
            sync_folder(self._settings.folder)
        path.unlink()

    def _batch(self, batch: Sequence[SinkDelivery]) -> Any:
        records = [each.record for each in batch]
        columns = {
            "at_ms": [record.message.at_ms for record in records],
            "topic": [record.message.topic for record in records],
            "payload": [record.payload for record in records],
            "qos": [record.message.qos for record in records],
            "retain": [record.message.retain for record in records],
            "user_properties": [user_properties(record.message.properties) for record in records],
            "ref": [record.message.reference for record in records],
            "target": [record.target for record in records],
        }
        return self._arrow.RecordBatch.from_pydict(columns, self._schema)

    async def check(self) -> list[BridgeFinding]:
        """Check whether the folder is writable."""
        writable = os.access(self._settings.folder, os.W_OK)
        return [BridgeFinding(writable, f"files {self._settings.folder}", "writable" if writable else "not writable")]
