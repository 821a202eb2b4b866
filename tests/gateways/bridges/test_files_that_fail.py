"""A disk error during the rotation of a file loses no acknowledged record."""

import errno
import io
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from conf.bridge_settings import FilesSink
from gateways.bridges.files_sink import OPEN, FileSink
from gateways.bridges.message import BridgeMessage, SinkRecord
from gateways.bridges.pump import SinkDelivery

BATCHES = 20


class FailingFile(io.RawIOBase):
    """A file of which only a part is readable."""

    def __init__(self, content: bytes, good: int) -> None:
        super().__init__()
        self._content, self._good, self._at = content, good, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._at >= self._good:
            raise OSError(errno.EIO, "Input/output error")
        found = self._content[self._at : self._at + size] if size >= 0 else self._content[self._at :]
        self._at += len(found)
        return found


def sink(folder: Path) -> FileSink:
    options = {"kind": "files", "cluster": ["mqtt://127.0.0.1"], "client_id": "c", "folder": folder}
    flow: Any = None
    return FileSink(FilesSink.model_validate(options | {"map": [{"filter": "#"}]}), "under", 0, flow)


async def left_open(folder: Path) -> Path:
    """Write batches and leave the file open, as a killed process does."""
    message = BridgeMessage("t", b"x" * 1000, 1, False, {}, None, "r")
    killed = sink(folder)
    for number in range(BATCHES):
        outcome = await killed.write([SinkDelivery(number, SinkRecord("t", message.payload, "t", message), number)])
        assert not outcome.text
    (path,) = folder.glob(f"*{OPEN}")
    return path


def rows(folder: Path) -> int:
    return sum(pyarrow.parquet.read_table(path).num_rows for path in folder.glob("*.parquet"))


async def test_files_read_error_keeps_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise later batches, synced and acknowledged, would be deleted with the file."""
    path, made = await left_open(tmp_path), sink(tmp_path)
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: FailingFile(content, len(content) // 2))
        assert "Input/output error" in (await made.write(())).text
    assert path.read_bytes() == content
    assert not (await made.write(())).text
    assert rows(tmp_path) == BATCHES
    assert not path.exists()


async def test_files_truncated_batch_ends_file(tmp_path: Path) -> None:
    path, made = await left_open(tmp_path), sink(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert not (await made.write(())).text
    assert 0 < rows(tmp_path) < BATCHES
