"""Expired records are found in order, the same at every router, and without a scan of the rest."""

import random

import msgspec

from access.limits.bans import Ban
from access.policy.commands import AddBan, AddToken, DeleteBan, DeleteToken, Prune, Revoke, Unrevoke
from access.policy.machine import PolicyMachine
from access.policy.records import Revoked, Token, ban_key
from access.policy.step import RECORDS_MAX
from access.policy.tables import Table, bans_table
from wire.decoding import Payload

DIGEST = "0a" * 32


def test_ends_follow_what_is_put_replaced_and_removed() -> None:
    """Compared with a full scan, also after a snapshot."""
    draw = random.Random(1)
    table, known = bans_table(with_ends=True), dict[str, Ban]()
    for at in range(2_000):
        name = f"c{draw.randrange(60)}"
        key = ban_key("client_id", name)
        if draw.random() < 0.6:
            known[key] = Ban("client_id", name, draw.choice((0.0, float(draw.randrange(1, 50)))))
            table.put(known[key])
        else:
            known.pop(key, None)
            table.remove(key)
        if at % 50 == 0:
            table.load(table.raw())
        by = float(draw.randrange(50))
        count = draw.randrange(70)
        ended = sorted(
            ((ban.until_utc, key) for key, ban in known.items() if not ban.holds(by)), key=lambda one: one[0]
        )
        found = table.ended(by, count)
        assert [known[key].until_utc for key in found] == [end for end, _ in ended[:count]]
        assert set(found) <= {key for _, key in ended} and len(set(found)) == len(found)


def test_a_step_removes_no_more_than_fit_of_all_kinds_together() -> None:
    """Bans, revocations and tokens share the bound of a step; valid ones stay, and no right is removed."""
    machine = PolicyMachine()
    for at in range(50):
        machine.apply(AddBan(Ban("client_id", f"c{at}", 5.0)))
        machine.apply(Revoke(Revoked("token", f"j{at}", "", 5.0)))
        machine.apply(AddToken(Token(f"t{at}", "viewer", DIGEST, 5.0)))
    machine.apply(AddBan(Ban("user", "ann", 9.0)))
    machine.apply(Revoke(Revoked("token", "for ever")))
    machine.apply(AddToken(Token("stays", "viewer", DIGEST)))
    other = PolicyMachine()
    other.restore(machine.snapshot())
    left = 153
    while (outcome := machine.apply(Prune(8.0))).step is not None:
        assert outcome == other.apply(Prune(8.0)) and not outcome.step.takes
        tables = machine.tables
        now_left = len(tables.bans) + len(tables.revoked) + len(tables.tokens)
        assert left - RECORDS_MAX <= now_left < left
        left = now_left
    assert left == 3 and machine.snapshot() == other.snapshot()


def test_a_record_whose_end_was_moved_or_that_was_taken_back_is_not_pruned_by_the_former_one() -> None:
    """The latest command about a ban applies."""
    machine = PolicyMachine()
    machine.apply(AddBan(Ban("user", "ann", 5.0)))
    machine.apply(AddBan(Ban("user", "ann", 50.0)))
    machine.apply(Revoke(Revoked("token", "j", "", 5.0)))
    machine.apply(Revoke(Revoked("token", "j")))
    assert machine.apply(Prune(10.0)).step is None
    machine.apply(Unrevoke("token", "", "j"))
    machine.apply(DeleteBan("user", "ann"))
    machine.apply(AddToken(Token("t", "viewer", DIGEST, 5.0)))
    machine.apply(DeleteToken("t"))
    assert machine.apply(Prune(99.0)).step is None and not machine.tables.has_ended(99.0)


def test_tables_find_expired_without_decoding_valid_records() -> None:
    """A search among 5 000 valid bans decodes none, and the removal of three decodes only those."""
    decode, read = msgspec.msgpack.Decoder(Ban).decode, [0]

    def counted(data: Payload) -> Ban:
        read[0] += 1
        return decode(data)

    table = Table(counted, lambda ban: ban.value, lambda ban: ban.until_utc)
    for at in range(5_000):
        table.put(Ban("client_id", f"c{at}", 100.0 + at))
    assert table.ended(99.0, RECORDS_MAX) == [] and read[0] == 0
    for key in table.ended(102.0, RECORDS_MAX):
        table.remove(key)
    assert len(table) == 4_997 and read[0] == 3
