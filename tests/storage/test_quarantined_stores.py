"""Quarantined stores: listed with their size, removed only by name."""

from pathlib import Path

import pytest

from conf.errors import ExitCode, UserError
from storage.store.quarantine import quarantine, store_files
from storage.store.quarantined_stores import QuarantinedStores


def test_quarantined_stores_are_listed_and_removed_by_name(tmp_path: Path) -> None:
    """All files of one store are removed, those of other stores stay."""
    path = tmp_path / "store"
    for _ in range(2):
        for file in store_files(path):
            file.write_bytes(b"12345")
        quarantine(path)
    path.write_bytes(b"present")
    aside = QuarantinedStores(path)
    listed = aside.listed()
    assert [store["name"] for store in listed["stores"]] == ["store.quarantined-1", "store.quarantined-2"]  # type: ignore[attr-defined]
    assert all(store["bytes"] >= 15 for store in listed["stores"])  # type: ignore[attr-defined]
    assert len(aside) == 2
    assert aside.remove("store.quarantined-1", dry_run=True)["dry_run"]
    assert len(aside) == 2
    aside.remove("store.quarantined-1")
    assert [store["name"] for store in aside.listed()["stores"]] == ["store.quarantined-2"]  # type: ignore[attr-defined]
    assert path.read_bytes() == b"present"
    assert not list(tmp_path.glob("store.quarantined-1*"))
    for name in ("store", "store.quarantined-1", "../store", ""):
        with pytest.raises(UserError, match="put aside") as caught:
            aside.remove(name)
        assert caught.value.exit_code == ExitCode.USAGE
