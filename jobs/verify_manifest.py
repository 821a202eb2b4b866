"""Verify exported SSTables with pyarrow alone: python verify_manifest.py DIRECTORY. Needs no other file of StrataMQ."""

import hashlib
import json
import pathlib
import sys
import zlib
from typing import Any

import pyarrow.parquet as pq


def check(path: pathlib.Path, entry: dict[str, Any]) -> set[str]:
    """Return the differences between a file and its manifest entry, an empty set if there are none."""
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        return {"sha256 differs" if path.is_file() else "missing"}
    problems, keys = set(), []
    for batch in pq.ParquetFile(path).iter_batches(columns=["partition", "key", "value", "seq", "crc"]):
        for partition, key, value, seq, crc in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if partition != entry["partition"]:
                problems.add("row of another partition")
            if zlib.crc32(key + (value or b"") + seq.to_bytes(8, "big")) != crc:
                problems.add(f"crc of key {key.hex()}")
            keys.append(key)
    bounds = (keys[0].hex(), keys[-1].hex()) if keys else ("", "")
    if (len(keys), *bounds) != (entry["rows"], entry["key_min_hex"], entry["key_max_hex"]):
        problems.add(f"{len(keys)} rows from {bounds[0]} to {bounds[1]}, not as listed")
    return problems if keys == sorted(set(keys)) else problems | {"keys out of order"}


def main(root: pathlib.Path) -> int:
    """Check the newest manifest in a folder and print the differences; return the exit code, 1 with differences."""
    manifest = json.loads(max(root.glob("manifest-????????.json")).read_bytes())
    crc, files = manifest.pop("manifest_crc"), manifest["files"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    bad = [] if zlib.crc32(text.encode()) == crc else ["manifest: crc differs"]
    bad += [f"{entry['path']}: {problem}" for entry in files for problem in sorted(check(root / entry["path"], entry))]
    print("\n".join(bad) or f"manifest {manifest['manifest_no']}: {len(files)} files are as listed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
