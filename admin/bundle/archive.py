"""The archive of a support bundle: JSON lines files, a manifest with a SHA-256 of each, and a total bound."""

import gzip
import hashlib
import io
import json
import os
import secrets
import tarfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["BYTES_MAX", "ArchiveFile", "write_archive"]

BYTES_MAX = 64 * 1024 * 1024  # of the archive
RESERVED_BYTES = 1024 * 1024  # for the manifest, headers and compression overhead
HEADER = 1024  # of one file in the archive


class ArchiveFile(NamedTuple):
    """One file of the archive: lines, or one document."""

    name: str
    lines: Sequence[Any]
    may_lose: bool = False  # its oldest lines (the first ones), if the bundle is too large
    is_document: bool = False


def write_archive(
    path: Path, parts: Sequence[ArchiveFile], about: Mapping[str, Any], bytes_max: int = BYTES_MAX
) -> int:
    """Write an archive that only its owner can read, atomically; return its size.

    Args:
        path: Must not exist.
        parts: In their order; all masked.
        about: Additional fields of the manifest.
        bytes_max: Of the archive.

    Raises:
        OSError: The path exists, or cannot be written.
    """
    texts = {part.name: _encoded(part) for part in parts}
    left_out = _fit(parts, texts, bytes_max - min(RESERVED_BYTES, bytes_max // 2))
    files = {name: b"".join(lines) for name, lines in texts.items()}
    manifest = {
        **about,
        "left_out": left_out,
        "files": [
            {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        ],
    }
    files["manifest.json"] = json.dumps(manifest, indent=2, default=str).encode() + b"\n"
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")  # a killed process may leave one
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write(file, files)
        os.link(new, path)  # like rename, but never replaces an existing file
    finally:
        new.unlink()
    return path.stat().st_size


def _write(file: Any, files: Mapping[str, bytes]) -> None:
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(f"support/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    file.flush()
    os.fsync(file.fileno())


def _encoded(part: ArchiveFile) -> deque[bytes]:
    if part.is_document:
        return deque([json.dumps(part.lines[0], indent=2, default=str).encode() + b"\n"])
    return deque(json.dumps(line, default=str).encode() + b"\n" for line in part.lines)


def _fit(parts: Sequence[ArchiveFile], texts: dict[str, deque[bytes]], bytes_max: int) -> dict[str, int]:
    """Remove the oldest lines of the largest removable file until all fits; return the counts by file."""
    sizes = {name: sum(map(len, lines)) for name, lines in texts.items()}
    over = sum(sizes.values()) + HEADER * len(texts) - bytes_max
    losing = [part.name for part in parts if part.may_lose]
    fixed = [part.name for part in parts if not part.may_lose and not part.is_document]
    left_out: dict[str, int] = {}
    for names in (losing, fixed):
        while over > 0 and any(sizes[name] for name in names):
            name = max(names, key=lambda name: sizes[name])
            line = texts[name].popleft()
            sizes[name] -= len(line)
            over -= len(line)
            left_out[name] = left_out.get(name, 0) + 1
    return left_out
