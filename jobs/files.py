"""File operations of a job's driver, on local disks and on any file system with a Hadoop connector.

Only the driver reads and writes manifests; executors read and write runs through Spark. Local files are synced here,
because Spark's writer syncs nothing. On other file systems a closed file is durable by contract.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

from conf.synced_folder import sync_folder
from conf.urls import mask_urls
from wire.sstable.manifest import (
    Manifest,
    ManifestDamaged,
    ManifestExists,
    decode_manifest,
    encode_manifest,
    manifest_name,
    manifest_numbers,
    publish_manifest,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FileFacts",
    "FileSystem",
    "HadoopFiles",
    "LocalFiles",
    "is_local",
    "local_path",
    "local_rows",
    "newest_with_bytes",
    "open_directory",
]

_HASH_BYTES = 1 << 20
_RENAME_SCHEMES = ("file", "hdfs", "viewfs", "abfs", "abfss")  # FileContext.rename refuses an existing target there


class FileFacts(NamedTuple):
    """Facts that identify a file."""

    bytes: int
    sha256: str


class FileSystem(Protocol):
    """One directory with its content; paths are relative to it, with /."""

    def uri(self, path: str = "") -> str:
        """Return the URI of path for Spark."""

    def spark_name(self, path: str) -> str:
        """Return path in the form of ``_metadata.file_path``."""

    def names(self, path: str = "") -> list[str]:
        """Return names of files and folders in a folder, sorted; [] if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return a small file."""

    def identify(self, paths: list[str]) -> dict[str, FileFacts | None]:
        """Return size and sha256 of files, None for a missing one."""

    def size(self, path: str) -> int:
        """Return the size of an existing file in bytes."""

    def publish(self, manifest: Manifest) -> None:
        """Publish atomically under the manifest's number, or raise ManifestExists."""

    def write(self, path: str, data: bytes) -> None:
        """Write a whole new file, and create its folders."""

    def copy_from(self, source: FileSystem, path: str) -> None:
        """Copy one file from another directory, same relative path."""

    def sync(self, paths: list[str]) -> None:
        """Make files and their names durable."""

    def modified_ms(self, path: str) -> int:
        """Return the UTC ms of the last change."""

    def tree(self, path: str) -> list[tuple[str, int, int]]:
        """Return (path, bytes, UTC ms of the last change) of a file, or of all files under a folder, sorted."""

    def delete(self, path: str) -> None:
        """Delete a file or a whole folder, if it exists."""


class OutsideStore(OSError):
    """A name or a link leads out of the job's directory."""


class LocalFiles:
    """A directory on this machine, or mounted on all machines under the same path."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def uri(self, path: str = "") -> str:
        """Return the path below the root; without a path, the root."""
        return str(self.root / path) if path else str(self.root)

    def spark_name(self, path: str) -> str:
        """Return path in the form of ``_metadata.file_path``."""
        return "file:" + quote(str(self.root / path), safe="/!$&'()*+,;=:@~-._")

    def path(self, path: str) -> Path:
        """Return the path of a file after checking that no link leads out of the root.

        Raises:
            OutsideStore: A link leads out of the directory, where no file is read, written or deleted.
        """
        target = self.root / path
        root = self.root.resolve()
        if path and root not in target.parent.resolve().joinpath(target.name).parents:
            raise OutsideStore(f"{target} leads out of {root}: it is a link or an invalid name")
        if target.is_symlink() and root not in target.resolve().parents:
            raise OutsideStore(f"{target} is a link out of {root}")
        return target

    def names(self, path: str = "") -> list[str]:
        """Return the sorted names in a folder, [] if it does not exist."""
        folder = self.path(path)
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        return self.path(path).read_bytes()

    def identify(self, paths: list[str]) -> dict[str, FileFacts | None]:
        """Return size and digest of each file by its path, None for a missing one; hashes files in parallel."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashlib releases the interpreter lock
            return dict(zip(paths, pool.map(self._identify, paths), strict=True))

    def _identify(self, path: str) -> FileFacts | None:
        digest = hashlib.sha256()
        size = 0
        try:
            with self.path(path).open("rb") as file:
                while block := file.read(_HASH_BYTES):
                    digest.update(block)
                    size += len(block)
        except FileNotFoundError:
            return None
        return FileFacts(size, digest.hexdigest())

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return (self.root / path).stat().st_size

    def publish(self, manifest: Manifest) -> None:
        """Publish a manifest atomically and durably."""
        self.root.mkdir(parents=True, exist_ok=True)
        publish_manifest(self.root, manifest)

    def write(self, path: str, data: bytes) -> None:
        """Write a new file; an existing one is an error."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._sync_folders(target)

    def copy_from(self, source: FileSystem, path: str) -> None:
        """Copy a file of another file system to the same path here; an existing one is an error."""
        target = self.path(path)
        if isinstance(source, LocalFiles):
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.path(path).open("rb") as data, target.open("xb") as copy:
                shutil.copyfileobj(data, copy, _HASH_BYTES)
                copy.flush()
                os.fsync(copy.fileno())
            self._sync_folders(target)
        else:
            self.write(path, source.read(path))

    def sync(self, paths: list[str]) -> None:
        """Make files and their folders durable."""
        for path in paths:
            fd = os.open(self.root / path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        for path in {str(Path(p).parent) for p in paths}:
            self._sync_folders(self.root / path / "x")

    def _sync_folders(self, target: Path) -> None:
        for folder in target.parents:
            sync_folder(folder)
            if folder == self.root:
                break

    def modified_ms(self, path: str) -> int:
        """Return the time of a file's last change, in ms since 1970."""
        return (self.root / path).stat().st_mtime_ns // 1_000_000

    def tree(self, path: str) -> list[tuple[str, int, int]]:
        """Return (path below the root, bytes, last change in ms since 1970) of each file, sorted."""
        top = self.path(path)
        files = [top] if top.is_file() else [found for found in top.rglob("*") if not found.is_dir()]
        states = [(found.relative_to(self.root).as_posix(), found.lstat()) for found in files]
        return sorted((name, state.st_size, state.st_mtime_ns // 1_000_000) for name, state in states)

    def delete(self, path: str) -> None:
        """Delete a file or a folder with its content, if it exists."""
        target = self.path(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


class HadoopFiles:
    """A directory of any file system with a Hadoop connector, through the driver's JVM."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root.rstrip("/")
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._fs: Any = self._path("").getFileSystem(self._configuration)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))

    def uri(self, path: str = "") -> str:
        """Return the URI below the root; without a path, the root."""
        return f"{self.root}/{path}" if path else self.root

    def spark_name(self, path: str) -> str:
        """Return path in the form of ``_metadata.file_path``."""
        name = str(self._fs.makeQualified(self._path(path)).toUri().toString())
        return re.sub("^file:/+", "file:/", name)

    def names(self, path: str = "") -> list[str]:
        """Return the sorted names in a folder, [] if it does not exist."""
        folder = self._path(path)
        if not self._fs.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(folder))

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        stream = self._fs.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def identify(self, paths: list[str]) -> dict[str, FileFacts | None]:
        """Return size and digest, computed in executors. Files of 2 GiB and more are not supported."""
        from pyspark.sql import functions as F

        present = [path for path in paths if self._fs.exists(self._path(path))]
        found: dict[str, FileFacts | None] = dict.fromkeys(paths)
        if present:
            frame = self._spark.read.format("binaryFile").load([self.uri(path) for path in present])
            rows = frame.select("path", "length", F.sha2("content", 256).alias("sha256")).collect()
            by_name = {unquote(row["path"]): FileFacts(row["length"], row["sha256"]) for row in rows}
            found |= {path: by_name[unquote(self.spark_name(path))] for path in present}
        return found

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return int(self._fs.getFileStatus(self._path(path)).getLen())

    def publish(self, manifest: Manifest) -> None:
        """Publish by a rename that refuses an existing target, or by such a create (object stores)."""
        name = manifest_name(manifest.manifest_no)
        data = encode_manifest(manifest)
        try:
            if self._fs.getScheme() in _RENAME_SCHEMES:
                temporary = f".{name}.{manifest.job.run_id}.tmp"
                self._create(temporary, data)
                none: Any = self._jvm.org.apache.hadoop.fs.Options.Rename.NONE
                gateway: Any = self._spark.sparkContext._gateway
                options = gateway.new_array(self._jvm.org.apache.hadoop.fs.Options.Rename, 1)
                options[0] = none
                context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                    self._fs.getUri(), self._configuration
                )
                context.rename(self._path(temporary), self._path(name), options)
            else:
                self._create(name, data)
        except Exception as error:  # py4j wraps the Java exception, with its name in the text
            if "FileAlreadyExists" in str(error) or "already exists" in str(error) or "412" in str(error):
                raise ManifestExists(f"{name} was published by another job") from None
            raise

    def _create(self, path: str, data: bytes) -> None:
        stream = self._fs.create(self._path(path), False)
        stream.write(bytearray(data))
        stream.hsync() if self._fs.getScheme() == "hdfs" else stream.flush()
        stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a new file; an existing one is an error."""
        self._create(path, data)

    def copy_from(self, source: FileSystem, path: str) -> None:
        """Copy a file of another file system to the same path here; an existing one is an error."""
        origin = self._jvm.org.apache.hadoop.fs.Path(source.uri(path))
        self._jvm.org.apache.hadoop.fs.FileUtil.copy(
            origin.getFileSystem(self._configuration), origin, self._fs, self._path(path), False, False,
            self._configuration,
        )  # fmt: skip

    def sync(self, paths: list[str]) -> None:
        """Do nothing: these file systems make a closed file durable."""

    def modified_ms(self, path: str) -> int:
        """Return the time of a file's last change, in ms since 1970."""
        return int(self._fs.getFileStatus(self._path(path)).getModificationTime())

    def tree(self, path: str) -> list[tuple[str, int, int]]:
        """Return (path below the root, bytes, last change in ms since 1970) of each file, sorted."""
        if not self._fs.exists(self._path(path)):
            return []
        root = unquote(self.spark_name("").rstrip("/")) + "/"
        found = []
        files = self._fs.listFiles(self._path(path), True)
        while files.hasNext():
            status = files.next()
            name = re.sub("^file:/+", "file:/", str(status.getPath().toString()))
            found.append((name.removeprefix(root), int(status.getLen()), int(status.getModificationTime())))
        return sorted(found)

    def delete(self, path: str) -> None:
        """Delete a file or a folder with its content, if it exists."""
        self._fs.delete(self._path(path), True)


def open_directory(spark: SparkSession | None, uri: str) -> FileSystem:
    """Return the file system of a plain path, a file: URI, or any other URI (needs a session)."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return LocalFiles(Path(unquote(parts.path) if parts.scheme else uri))
    if spark is None:
        raise ValueError(f"{mask_urls(uri)}: reading it needs a Spark session")
    return HadoopFiles(spark, uri)


def is_local(uri: str) -> bool:
    """Return whether a URI is a plain path or a file: URI."""
    return urlsplit(uri).scheme in ("", "file")


def local_path(uri: str) -> Path:
    """Return the path of a plain path or a file: URI."""
    return Path(unquote(urlsplit(uri).path)) if urlsplit(uri).scheme == "file" else Path(uri)


def local_rows(uris: Sequence[str]) -> int | None:
    """Return the rows in the newest manifests of local directories, None if one is not local."""
    rows = 0
    for uri in uris:
        if not is_local(uri):
            return None
        with suppress(OSError, ManifestDamaged):  # the job reports it later, without a session
            newest = newest_with_bytes(open_directory(None, uri))
            rows += newest[0].totals["rows"] if newest else 0
    return rows


def newest_with_bytes(files: FileSystem) -> tuple[Manifest, bytes] | None:
    """Return the newest manifest and its bytes, None if there is none.

    Raises:
        ManifestDamaged: The newest manifest is damaged.
    """
    numbers = manifest_numbers(files.names())
    if not numbers:
        return None
    data = files.read(manifest_name(numbers[-1]))
    return decode_manifest(data), data
