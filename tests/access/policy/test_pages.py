"""A view arrives in pages, complete or not at all, and never an older one than the node has."""

import random
import time

import pytest

from access.limits.bans import Ban
from access.policy.commands import AddBan, DeleteBan, PutRole
from access.policy.machine import PolicyMachine
from access.policy.pages import ENCODED_MAX, STEPS_MAX, PolicyPages, PolicyReader
from access.policy.records import RoleRecord, RuleRecord
from access.policy.step import PolicyStep
from access.policy.view import PolicyView, ViewReading, encode_view
from tests.access.policy.whole_views import decode_view
from wire.decoding import Unreadable

PAGE = 100


def machine(bans: int = 40) -> PolicyMachine:
    made = PolicyMachine()
    for number in range(bans):
        made.apply(AddBan(Ban("user", f"u{number}")))
    made.apply(PutRole("device", (RuleRecord(True, 3, "a/#"),)))
    return made


def read(pages: PolicyPages, epoch: int, own: int = 0) -> PolicyView | None:
    reader, offset = PolicyReader(), 0
    while (page := pages.page(epoch, offset)) is not None:
        assert len(page.data) <= PAGE
        view = reader.take(page, own)
        if view is not None:
            assert reader.wanted is None
            return view
        assert reader.wanted == (epoch, offset + len(page.data))
        offset += len(page.data)
    return None


def test_a_view_in_pages_is_the_view_and_steps_wait_for_it() -> None:
    """Steps between the pages are applied after the last; earlier ones are ignored."""
    policy = machine()
    pages = PolicyPages(PAGE)
    pages.put(policy.epoch, encode_view(policy.epoch, policy.tables, policy.digest))
    view = read(pages, policy.epoch)
    assert view is not None and view.epoch == 41 and view.bans.of_principal("u7", "", "", 0.0)
    assert view.role("device") is not None and view.role("none") is None and view.group("none") is None
    assert not view.is_revoked("token", "", "t")
    reader, offset = PolicyReader(), 0
    later = [policy.apply(DeleteBan("user", f"u{number}")).step for number in range(3)]
    while reader.wanted is None or offset:
        page = pages.page(41, offset)
        assert page is not None
        got = reader.take(page, 5)
        if got is not None:
            break
        for step in later:
            assert step is None or reader.keep(step)
        later, offset = [], offset + len(page.data)
    assert got is not None and got.epoch == 44 and not got.bans.of_principal("u2", "", "", 0.0)


def test_a_view_of_a_lower_epoch_is_refused() -> None:
    """A lagging router would restore removed rights."""
    policy = machine()
    pages = PolicyPages(PAGE)
    pages.put(policy.epoch, encode_view(policy.epoch, policy.tables, policy.digest))
    with pytest.raises(ValueError, match="behind 42"):
        read(pages, 41, own=42)
    assert read(pages, 41, own=41) is not None


def test_pages_that_are_lost_mixed_or_damaged_make_no_view() -> None:
    """From two encodings, in any order, with changed bytes: one of the views, or none."""
    first, second = machine(30), machine(30)
    second.apply(AddBan(Ban("user", "late")))
    data = [encode_view(policy.epoch, policy.tables, policy.digest) for policy in (first, second)]
    pages = PolicyPages(PAGE)
    for policy, encoded in zip((first, second), data, strict=True):
        pages.put(policy.epoch, encoded)
    all_pages = [
        page
        for policy, encoded in zip((first, second), data, strict=True)
        for offset in range(0, len(encoded), PAGE)
        if (page := pages.page(policy.epoch, offset)) is not None
    ]
    random_ = random.Random(5)
    whole = 0
    for _ in range(300):
        reader = PolicyReader()
        for page in random_.choices(all_pages, k=20) if random_.random() < 0.7 else all_pages:
            try:
                view = reader.take(page, 0)
            except ValueError:
                assert reader.wanted is None
                continue
            if view is not None:
                whole += 1
                assert encode_known(view, first) or encode_known(view, second)
    assert whole
    damaged = [page for page in all_pages if page.epoch == first.epoch]
    reader = PolicyReader()
    last = damaged.pop()
    for page in damaged:
        reader.take(page, 0)
    with pytest.raises(ValueError, match="not of one view"):
        reader.take(type(last)(last.epoch, last.offset, last.size, last.checksum, bytes(len(last.data))), 0)


def encode_known(view: PolicyView, policy: PolicyMachine) -> bool:
    return view.epoch == policy.epoch and len(view.bans) == len(policy.tables.bans)


def test_both_sides_are_bounded() -> None:
    """A router stores some epochs, a reader some steps and no view that is too large."""
    policy = machine(5)
    data = encode_view(policy.epoch, policy.tables, policy.digest)
    pages = PolicyPages(PAGE)
    for epoch in range(10):
        pages.put(epoch, data)
    assert sum(pages.has(epoch) for epoch in range(10)) == ENCODED_MAX
    assert pages.page(9, len(data)) is None and pages.page(9, -1) is None and pages.page(0, 0) is None
    pages.clear()
    assert not pages.has(9)
    reader = PolicyReader()
    kept = [reader.keep(PolicyStep(number)) for number in range(STEPS_MAX + 1)]
    assert kept == [True] * STEPS_MAX + [False]
    pages.put(9, data)
    page = pages.page(9, 0)
    assert page is not None
    with pytest.raises(ValueError, match="none"):
        reader.take(type(page)(9, 0, 1 << 40, page.checksum, page.data), 0)


def test_a_step_that_does_not_follow_changes_nothing() -> None:
    """Of another epoch, or with an invalid ban; the view then requests pages."""
    view = PolicyView()
    for step in (PolicyStep(2), PolicyStep(0), PolicyStep(1, bans={"address x": Ban("address", "x")})):
        with pytest.raises(ValueError):
            view.apply(step)
        assert view.epoch == 0 and not len(view.bans)


def test_view_role_that_cannot_be_compiled_is_refused() -> None:
    """Found by the target "policy-steps": an edge accepted it, and its first login stopped the edge."""
    view = PolicyView()
    damaged = RoleRecord("device", (RuleRecord(True, 3, "a/#", network="10/0.0.0/8"),))
    for name, role in (("device", damaged), ("other", RoleRecord("device"))):
        with pytest.raises(ValueError):
            view.apply(PolicyStep(1, roles={name: role}))
        assert view.epoch == 0 and view.role("device") is None
    policy = machine()
    policy.tables.roles.put(damaged)
    with pytest.raises(Unreadable):
        decode_view(encode_view(policy.epoch, policy.tables, policy.digest))


def test_a_large_view_is_read_in_slices() -> None:
    """The former view stays in use, steps wait, and damage is found."""
    policy = machine(9_000)
    for number in range(300):
        policy.apply(PutRole(f"r{number}", tuple(RuleRecord(True, 3, f"a/{number}/{rule}/+") for rule in range(40))))
    pages = PolicyPages()
    data = encode_view(policy.epoch, policy.tables, policy.digest)
    pages.put(policy.epoch, data)
    reader, offset, slices = PolicyReader(), 0, 0
    while (page := pages.page(policy.epoch, offset)) is not None:
        assert not reader.is_whole and reader.take(page, 0) is None
        offset += len(page.data)
    assert reader.is_whole and reader.is_reading and reader.wanted is None
    step = policy.apply(DeleteBan("user", "u7")).step
    assert step is not None and reader.keep(step)
    while (view := reader.advance()) is None:
        slices += 1
    assert slices > 15 and view.epoch == policy.epoch and not reader.is_reading
    assert view.role("r299") is not None and not view.bans.of_principal("u7", "", "", 0.0) and len(view.bans) == 8_999


@pytest.mark.slow
def test_no_slice_of_the_largest_view_takes_longer_than_five_milliseconds() -> None:
    """By processor time; 100 000 bans, 1 024 roles with 100 000 rules."""
    policy = machine(100_000)
    for number in range(1_000):
        policy.apply(PutRole(f"r{number}", tuple(RuleRecord(True, 3, f"a/{number}/{rule}/+") for rule in range(100))))
    data = encode_view(policy.epoch, policy.tables, policy.digest)
    began = time.thread_time()
    reading, longest, whole = ViewReading(data), 0.0, False
    print(f"begin {(time.thread_time() - began) * 1e3:.1f} ms")
    while not whole:
        began = time.thread_time()
        whole = reading.advance()
        longest = max(longest, time.thread_time() - began)
    print(f"longest slice {longest * 1e3:.1f} ms")
    assert longest < 5e-3
