"""Operators' commands at a storage node, with fake copies."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from access.operators.commands import Operator, OperatorRole
from storage.export.exporter import Exporter
from storage.state.rows import MetaRow
from storage.store.quarantine import quarantine
from storage.store.quarantined_stores import QuarantinedStores
from storage.store.wal_store import WalStore
from wire.messages.operators import Admin


class FakeCopies:
    """A node that serves partition 3 and is in sync for 3 and 5."""

    node = "storage-0"

    def served(self) -> list[int]:
        return [3]

    def in_sync(self) -> list[int]:
        return [3, 5]

    def committed(self, number: int, *, was_primary: bool) -> int:
        return number if was_primary else -1

    def served_ms(self, number: int, meta: MetaRow) -> int:
        return meta.served_ms + number

    def describe(self, numbers: Iterable[int]) -> dict[str, str]:
        return {str(number): "made up" for number in numbers}


ADMIN = Operator(OperatorRole.ADMIN, "ann")


def exporter_of(folder: Path, counted: list[int]) -> Exporter:
    aside = QuarantinedStores(folder / "store.db")
    return Exporter(FakeCopies(), cast(WalStore, None), cast(Any, None), folder / "exports", aside, counted.append)


def test_exporter_counts_quarantined_stores_at_start(tmp_path: Path) -> None:
    """`cluster status` lists them before an operator acts."""
    for _ in range(2):
        (tmp_path / "store.db").write_bytes(b"x")
        aside = quarantine(tmp_path / "store.db")
    counted: list[int] = []
    desk = exporter_of(tmp_path, counted)
    assert counted == [2]
    reply = desk.ask(Admin(1, "store aside remove", {"name": aside.name, "dry_run": False}), ADMIN)
    assert reply.ok, reply.error
    assert counted == [2, 1]


def test_store_copies_describes_the_requested_partitions(tmp_path: Path) -> None:
    """Only the requested partitions are queried."""
    reply = exporter_of(tmp_path, []).ask(Admin(1, "store copies", {"partitions": [5]}), ADMIN)
    assert reply.ok and reply.result == {"5": "made up"}


def test_command_of_an_insufficient_role_is_refused_and_counted(tmp_path: Path) -> None:
    """A storage node checks the role itself; a peer that is no operator has no permissions."""
    desk = exporter_of(tmp_path, [])
    for operator, why in (
        (Operator(OperatorRole.OPERATOR, "bob"), "wants the role admin"),
        (None, "wants an operator's"),
    ):
        reply = desk.ask(Admin(1, "store aside remove", {"name": "x", "dry_run": False}), operator)
        assert not reply.ok and why in reply.error and reply.exit_code == 2
    assert desk.refused == 2
