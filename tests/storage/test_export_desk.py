"""Operators' verbs at a storage node, over copies that are made up."""

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


class MadeUpCopies:
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


def desk_of(folder: Path, counted: list[int]) -> Exporter:
    aside = QuarantinedStores(folder / "store.db")
    return Exporter(MadeUpCopies(), cast(WalStore, None), cast(Any, None), folder / "exports", aside, counted.append)


def test_stores_put_aside_before_the_start_are_counted_at_once(tmp_path: Path) -> None:
    """`cluster status` names them while an operator has yet to look."""
    for _ in range(2):
        (tmp_path / "store.db").write_bytes(b"x")
        aside = quarantine(tmp_path / "store.db")
    counted: list[int] = []
    desk = desk_of(tmp_path, counted)
    assert counted == [2]
    reply = desk.ask(Admin(1, "store aside remove", {"name": aside.name, "dry_run": False}), ADMIN)
    assert reply.ok, reply.error
    assert counted == [2, 1]


def test_the_copies_are_described_as_the_node_has_them(tmp_path: Path) -> None:
    """The desk asks for nothing but the partitions that the question names."""
    reply = desk_of(tmp_path, []).ask(Admin(1, "store copies", {"partitions": [5]}), ADMIN)
    assert reply.ok and reply.result == {"5": "made up"}


def test_a_role_that_does_not_suffice_is_refused_and_counted(tmp_path: Path) -> None:
    """NIST: protect. A node of storage judges the role itself; a peer that is no operator may nothing."""
    desk = desk_of(tmp_path, [])
    for operator, why in (
        (Operator(OperatorRole.OPERATOR, "bob"), "wants the role admin"),
        (None, "wants an operator's"),
    ):
        reply = desk.ask(Admin(1, "store aside remove", {"name": "x", "dry_run": False}), operator)
        assert not reply.ok and why in reply.error and reply.exit_code == 2
    assert desk.refused == 2
