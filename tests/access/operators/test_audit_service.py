"""The audit log of a running node: replies wait for the disk, records of unauthenticated peers do not."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from access.operators.audit_chain import AuditRecord, verify
from access.operators.audit_file import AuditFile, read_lines
from access.operators.audit_service import LINES_MAX, AuditService
from conf.errors import UserError
from conf.node_settings import NodeSettings
from tests.patience import PATIENCE_S
from wire.node.reload import Reloaded


def settings(folder: Path, **audit: object) -> NodeSettings:
    return NodeSettings.model_validate(
        {"id": "n", "data_dir": folder, "link_port": 0, "group_nice": 0, "slice_us": 0, **audit}
    )


def lines(folder: Path) -> list[dict[str, object]]:
    whole = list(read_lines(folder / "audit.jsonl"))
    assert not verify(whole).broken_line
    return [json.loads(line) for line in whole]


async def test_audit_write_calls_back_after_sync(tmp_path: Path) -> None:
    audit = AuditService(settings(tmp_path, audit_room_bytes_min=0), tmp_path)
    results: list[tuple[str, int]] = []
    done = trio.Event()

    def then(why: str) -> None:
        results.append((why, len(lines(tmp_path))))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        audit.write(AuditRecord("verb", "done", actor="ann"), then)
        with trio.fail_after(PATIENCE_S):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert results == [("", 2)]  # after the line of the start


async def test_audit_queue_is_written_at_stop(tmp_path: Path) -> None:
    audit = AuditService(settings(tmp_path, audit_room_bytes_min=0), tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        for number in range(30):
            audit.note(AuditRecord("login", "refused", actor=f"eve-{number}", address="10.0.0.1"))
        audit.reloaded(Reloaded(False, ("edge.toml: no such file",)))
        nursery.cancel_scope.cancel()
    found = lines(tmp_path)
    assert [line["kind"] for line in found] == ["start", "reload", "login", "login"]
    assert found[-1]["count"] == 29 and found[1]["outcome"] == "refused"


async def test_audit_full_disk_drops_notes(tmp_path: Path) -> None:
    """A flood of refusals takes no space from the verbs of operators."""
    audit = AuditService(settings(tmp_path, audit_room_bytes_min=1 << 50), tmp_path)
    assert "MiB of room" in audit.refusal()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit.run)
        audit.note(AuditRecord("login", "refused", address="10.0.0.1"))
        nursery.cancel_scope.cancel()
    assert [line["kind"] for line in lines(tmp_path)] == ["start"] and audit.counts["left_out"] == 1


async def test_a_disk_that_was_full_for_a_moment_refuses_verbs_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is retried without a request, and a line has the number of missing ones."""
    monkeypatch.setattr("access.operators.audit_service.RETRY_S", 0.01)
    audit = AuditService(settings(tmp_path, audit_room_bytes_min=0), tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tries = 0

    def no_room(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise full

    async def until(condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr(AuditFile, "_write", no_room)
            nursery.start_soon(audit.run)
            await until(lambda: bool(audit.refusal()))
            for number in range(3):
                audit.note(AuditRecord("login", "refused", address=f"10.0.0.{number}"))
            before = tries
            await until(lambda: tries >= before + 3)
            assert audit.refusal()
        await until(lambda: not audit.refusal())
        audit.note(AuditRecord("login", "refused", address="10.0.0.9"))
        nursery.cancel_scope.cancel()
    found = lines(tmp_path)
    assert [(line["kind"], line.get("count", 1)) for line in found] == [("gap", 4), ("login", 1)]
    assert "No space" in str(found[0]["reason"])
    assert audit.counts == {"written": 2, "left_out": 3, "failed": 1}


def test_audit_queue_is_bounded(tmp_path: Path) -> None:
    audit = AuditService(settings(tmp_path, audit_room_bytes_min=0), tmp_path)
    results: list[str] = []
    for _ in range(LINES_MAX + 5):
        audit.write(AuditRecord("verb", "done"), results.append)
    assert len(results) == 6 and all("ask again" in why for why in results)


def test_audit_invalid_file_refuses_start(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(UserError, match="audit"):
        AuditService(settings(tmp_path), tmp_path)
    (tmp_path / "other").write_text("no line of an audit\n")
    (tmp_path / "other").chmod(0o640)
    with pytest.raises(UserError, match="stratamq audit verify"):
        AuditService(settings(tmp_path, audit_file=tmp_path / "other"), tmp_path)
