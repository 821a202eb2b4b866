"""Any committed policy command is applied or refused alike at all routers, and the resulting view can be sent."""

import random
import time
from collections.abc import Iterable
from typing import Any, get_args

import msgspec
import pytest

from access.limits.bans import BanTable
from access.policy import bounds, rules
from access.policy.bounds import RANGES, USERS_MAX
from access.policy.commands import (
    AddBan,
    AddUser,
    ChangeUser,
    DeleteBan,
    DeleteGroup,
    DeleteRole,
    DeleteUser,
    PolicyCommand,
    PolicyOrder,
    Prune,
    PutGroup,
    PutRole,
    Revoke,
    SetDisabled,
    SetPassword,
    SimpleCommand,
    Unrevoke,
    decode_policy_command,
    encode_policy_command,
    is_readable,
)
from access.policy.machine import ORDERS_MAX, PolicyMachine
from access.policy.records import Ban, Revoked, RuleRecord, UserEntitlements
from access.policy.rules import RULES
from access.policy.step import RECORDS_MAX, StepOutcome, decode_step, encode_step
from access.policy.view import PolicyView, encode_view
from tests.access.policy.random_commands import random_command
from tests.access.policy.whole_views import decode_view
from wire.decoding import Unreadable
from wire.messages.ranges import MAP_PAGE_BYTES

HASH = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA"
KINDS_OF_NAMES = ("user", "client_id", "certificate")
VERIFIER = "SCRAM-SHA-256$4096:c2FsdA$a:b"


def made(*log: PolicyCommand) -> PolicyMachine:
    """Return a policy made by these commands, none of them refused."""
    machine = PolicyMachine()
    for command in log:
        outcome = machine.apply(command)
        assert not outcome.refusal, outcome.refusal
    return machine


def values_of(view: PolicyView, bans: Iterable[Ban]) -> dict[str, Any]:
    """Return a view as plain values, with the number of its bans, and the result for some."""
    plain = {name: sorted(map(repr, getattr(view, f"_{name}").records())) for name in ("groups", "roles", "revoked")}
    return plain | {"epoch": view.epoch, "bans": (len(view.bans), [found(view.bans, ban) for ban in bans])}


def found(table: BanTable, ban: Ban) -> Ban | None:
    """Return a table's ban for the subject of another ban."""
    if ban.kind in ("address", "network"):
        return table.of_address(ban.value.partition("/")[0], 0.0)
    user, client_id, certificate = (ban.value if ban.kind == kind else "" for kind in KINDS_OF_NAMES)
    return table.of_principal(user, client_id, certificate, 0.0)


BEGIN = (
    PutRole("device", (RuleRecord(True, 3, "a/#"),)),
    PutGroup("plant", ("device",)),
    AddUser("ann", HASH, roles=("device",), groups=("plant",)),
    AddBan(Ban("user", "eve")),
    Revoke(Revoked("token", "t1")),
)


def follow(log: list[PolicyCommand], restored_at: int) -> set[str]:
    """Apply a log at three routers and a view; return the applied commands.

    One router applies them, one supposes each first, one starts with a snapshot.
    """
    one, two, three = PolicyMachine(), PolicyMachine(), PolicyMachine()
    view = PolicyView()
    done = set()
    for at, command in enumerate(log):
        before = one.snapshot()
        if at == restored_at:
            three.restore(before)
        try:
            data = encode_policy_command(command)
        except UnicodeEncodeError:  # a lone surrogate: no log can hold it, and the machine refuses it too
            data = b""
        if not is_readable(data):
            assert one.suppose(command).step is None
            continue
        outcome = one.apply(decode_policy_command(data))
        assert "cannot be carried out" not in outcome.refusal
        assert outcome.step is None or not outcome.refusal
        assert outcome.step is not None or outcome.order is not None or one.snapshot() == before
        assert two.suppose(decode_policy_command(data)).refusal == outcome.refusal
        assert two.apply(decode_policy_command(data)) == outcome
        if at >= restored_at:
            assert three.apply(decode_policy_command(data)) == outcome
        if outcome.step is not None:
            done.add(type(command).__name__)
            encoded = bytes(encode_step(outcome.step))
            assert len(encoded) <= MAP_PAGE_BYTES
            view.apply(decode_step(encoded))
    assert one.snapshot() == two.snapshot()
    if len(log) > restored_at:
        assert three.snapshot() == one.snapshot()
    again = PolicyMachine()
    again.restore(one.snapshot())
    assert again.tables.role_uses == +one.tables.role_uses and again.tables.group_uses == +one.tables.group_uses
    for name in ("users", "groups", "roles", "bans", "revoked", "tokens"):
        assert getattr(again.tables, name).octets == getattr(one.tables, name).octets
    bans = list(one.tables.bans.records())
    sent = decode_view(encode_view(one.epoch, one.tables, one.digest))
    assert values_of(sent, bans) == values_of(view, bans) and view.epoch == one.epoch and len(view.bans) == len(bans)
    return done


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 3_000), marks=pytest.mark.slow)])
def test_apply_never_raises_and_all_routers_agree(seeds: range) -> None:
    """Over random logs, which together apply every kind of command."""
    done: set[str] = set()
    for seed in seeds:
        random_ = random.Random(seed)
        log = [random_command(random_) for _ in range(30)]
        try:
            done |= follow([*BEGIN, *log], random_.randrange(30))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert done == {command.__name__ for command in get_args(PolicyCommand)}


def test_every_command_has_one_rule_and_one_range() -> None:
    """A command without a range would be applied with any content."""
    assert RULES.keys() == set(get_args(SimpleCommand))
    assert RANGES.keys() == set(get_args(PolicyCommand))


POISON: list[PolicyCommand] = [
    AddUser(""),
    AddUser("a\x00b"),
    AddUser("a\x85b"),
    AddUser("x" * 257),
    AddUser("new", record="hunter2"),
    AddUser("new", record="$argon2id$" + "x" * 600),
    AddUser("new", roles=("none",)),
    AddUser("new", groups=("none",)),
    AddUser("new", roles=("device", "device")),
    AddUser("new", limits={"": 1}),
    AddUser("new", limits={"x": -1}),
    AddUser("ann"),
    ChangeUser("none", ()),
    SetPassword("ann", "x"),
    SetDisabled("none", True),
    DeleteUser("none"),
    DeleteRole("device"),
    DeleteGroup("plant"),
    PutRole("r", (RuleRecord(True, 0, "a"),)),
    PutRole("r", (RuleRecord(True, 1, "a#"),)),
    PutRole("r", (RuleRecord(True, 1, "a" * 2_000),)),
    PutRole("r", (RuleRecord(True, 1, "a", network="10.0.0.1/8"),)),
    PutRole("r", (RuleRecord(True, 1, "a" * 1_000),) * 1_000),
    PutRole("r", (RuleRecord(True, 1, "a"),) * 1_025),
    PutGroup("g", ("none",)),
    AddBan(Ban("address", "localhost")),
    AddBan(Ban("address", "::ffff:10.0.0.1")),
    AddBan(Ban("client_id", "x" * 2_000)),
    AddBan(Ban("user", "x", float("nan"))),
    AddBan(Ban("user", "x", float("inf"))),
    Revoke(Revoked("serial", "0AB", "CN=ca")),
    Revoke(Revoked("serial", "ab", "")),
    Prune(float("inf")),
    PolicyOrder("", SetDisabled("ann", True)),
    PolicyOrder("x" * 65, SetDisabled("ann", True)),
    PolicyOrder("x", PolicyOrder("y", SetDisabled("ann", True))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("command", POISON, ids=lambda command: type(command).__name__)
def test_a_poisonous_command_is_refused_and_changes_nothing(command: PolicyCommand) -> None:
    """By ``suppose`` and by ``apply``; the next command is applied."""
    machine = made(
        PutRole("device"), PutGroup("plant", ("device",)), AddUser("ann", roles=("device",), groups=("plant",))
    )
    before = machine.snapshot()
    assert machine.suppose(command).refusal and machine.apply(command).refusal
    assert machine.snapshot() == before
    assert machine.apply(SetDisabled("ann", True)).step


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa4type\xa2\xff\xfe", b"\x91" * 100_000, b"\x80", b"\x93\x01"])
def test_bytes_that_are_no_command_are_unreadable(data: bytes) -> None:
    """Also as a snapshot, a step or a view; no other exception is raised, and the state stays."""
    machine = made(AddUser("ann"))
    for decode in (decode_policy_command, machine.restore, decode_step, decode_view):
        with pytest.raises(Unreadable):
            decode(data)
    assert machine.user("ann") is not None


def test_a_rule_that_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any bug in a rule: the state stays, and all routers agree."""

    def broken(*_: object) -> str:
        raise ZeroDivisionError

    machine = made(AddUser("ann"))
    monkeypatch.setitem(rules.RULES, SetDisabled, broken)
    before = machine.snapshot()
    assert machine.apply(SetDisabled("ann", True)).refusal == "SetDisabled cannot be carried out: ZeroDivisionError"
    assert machine.snapshot() == before


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        (AddUser("bob"), StepOutcome()),
        (SetDisabled("ann", True), StepOutcome(users=("ann",))),
        (ChangeUser("ann", ()), StepOutcome(changed={"ann": UserEntitlements(3, (), ("plant",))})),
        (
            ChangeUser("ann", None, None, {"connections": 1}),
            StepOutcome(changed={"ann": UserEntitlements(3, ("device",), ("plant",), {"connections": 1})}),
        ),
        (SetPassword("ann", HASH + "x"), StepOutcome(users=("ann",))),
        (DeleteUser("ann"), StepOutcome(users=("ann",))),
        (PutRole("device"), StepOutcome(roles=("device",))),
        (PutRole("device", (RuleRecord(False, 3, "a/#"), RuleRecord(True, 3, "#"))), StepOutcome(roles=("device",))),
        (PutRole("new"), StepOutcome()),
        (PutGroup("plant"), StepOutcome(groups=("plant",))),
        (PutGroup("new"), StepOutcome()),
        (AddBan(Ban("user", "ann")), StepOutcome(bans=("user ann",))),
        (AddBan(Ban("user", "eve", 50.0)), StepOutcome(bans=("user eve",))),
        (DeleteBan("user", "eve"), StepOutcome()),
        (Revoke(Revoked("token", "t2")), StepOutcome(revoked=("token 2 t2 ",))),
        (Unrevoke("token", "", "t1"), StepOutcome()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_says_what_it_takes_away(command: SimpleCommand, takes: StepOutcome) -> None:
    """A step that only adds rights removes none, so no verb waits; otherwise it names the records to re-authorize."""
    outcome = made(*BEGIN).apply(command)
    assert outcome.step is not None and outcome.step.takes == takes and bool(takes) == (takes != StepOutcome())
    assert outcome.step.epoch == 6


def test_a_command_that_changes_nothing_makes_no_step() -> None:
    """No client is re-authorized for a repeated command."""
    machine = made(*BEGIN)
    for command in (*BEGIN[:2], *BEGIN[3:], ChangeUser("ann", ("device",)), SetDisabled("ann", False), Prune(1.0)):
        assert machine.apply(command) == type(machine.apply(command))() and machine.epoch == 5


def test_a_user_of_the_same_name_is_another_user() -> None:
    """``made`` differs, and every change makes another version."""
    machine = made(*BEGIN)
    first = machine.user("ann")
    assert first is not None and (first.made, first.version) == (3, 3)
    machine.apply(SetDisabled("ann", True))
    machine.apply(SetDisabled("ann", False))
    changed = machine.user("ann")
    assert changed is not None and changed.version == 7 and changed.made == 3
    machine.apply(DeleteUser("ann"))
    machine.apply(AddUser("ann", HASH))
    other = machine.user("ann")
    assert other is not None and other.made == 9


def test_roles_and_groups_that_are_in_use_stay() -> None:
    """A later role of that name would give its rights to these users."""
    machine = made(*BEGIN)
    assert "2 users and groups" in machine.apply(DeleteRole("device")).refusal
    assert "1 users" in machine.apply(DeleteGroup("plant")).refusal
    made_free: list[PolicyCommand] = [DeleteUser("ann"), DeleteGroup("plant"), DeleteRole("device")]
    assert all(machine.apply(command).step for command in made_free)


def test_an_order_is_carried_out_once() -> None:
    """A repeat gets the first outcome, also from a router that started with a snapshot; the memory is bounded."""
    machine = made(*BEGIN)
    order = PolicyOrder("o1", DeleteUser("ann"))
    first = machine.apply(order)
    assert first.step is not None and first.order is not None and first.order.epoch == 6
    other = PolicyMachine()
    other.restore(machine.snapshot())
    for router in (machine, other):
        again = router.apply(order)
        assert again.step is None and again.order == first.order and router.suppose(order) == again
    machine.apply(AddUser("ann"))
    assert machine.apply(order).order == first.order and machine.user("ann") is not None
    for number in range(ORDERS_MAX):
        machine.apply(PolicyOrder(f"n{number}", SetDisabled("none", True)))
    assert machine.apply(order).step is not None


def test_what_has_ended_is_pruned_in_steps_that_fit() -> None:
    """The leader names the time; each step removes some, and removes no right."""
    machine = made(*(AddBan(Ban("client_id", f"{number}" + "x" * 1_000, 10.0)) for number in range(150)))
    machine.apply(AddBan(Ban("user", "ann")))
    machine.apply(Revoke(Revoked("token", "t", until_utc=10.0)))
    steps = 0
    while (step := machine.apply(Prune(10.0)).step) is not None:
        assert not step.takes and len(step.bans) <= RECORDS_MAX and len(encode_step(step)) < MAP_PAGE_BYTES
        steps += 1
    assert steps == 3 and len(machine.tables.bans) == 1 and not len(machine.tables.revoked)


def test_the_policy_is_bounded_in_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """By numbers and by bytes; commands that shrink it are always applied."""
    monkeypatch.setattr(bounds, "USERS_BYTES_MAX", 400)
    monkeypatch.setattr(bounds, "VIEW_BYTES_MAX", 400)
    monkeypatch.setattr(bounds, "BANS_MAX", 2)
    machine = made(AddUser("a" * 150), AddUser("b" * 10, HASH), AddBan(Ban("user", "x")), AddBan(Ban("user", "y")))
    assert "bytes" in machine.apply(AddUser("c" * 100)).refusal
    assert "2 bans" in machine.apply(AddBan(Ban("user", "z"))).refusal
    assert machine.apply(AddBan(Ban("user", "y", 5.0))).step
    assert "bytes" in machine.apply(PutRole("r", (RuleRecord(True, 1, "a" * 350),))).refusal
    monkeypatch.setattr(bounds, "USERS_BYTES_MAX", 1)
    assert machine.apply(DeleteUser("a" * 150)).step and machine.apply(SetPassword("b" * 10)).step
    monkeypatch.setattr(bounds, "USERS_BYTES_MAX", 400)
    assert machine.apply(AddUser("c" * 100)).step


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state[1].append(state[1][0]),  # a repeated user
        lambda state: state.__setitem__(0, 1),  # an epoch below a user's
        lambda state: state[3].clear(),  # a missing role of a user
        lambda state: state[4].append(["address", "localhost"]),
        lambda state: state[2].append(["g" * 300]),
        lambda state: state.__setitem__(6, {str(number): ["", 1] for number in range(ORDERS_MAX + 1)}),
    ],
)
def test_a_snapshot_that_no_commands_make_is_refused_whole(change: Any) -> None:
    """From a leader, or from a damaged disk."""
    machine = made(*BEGIN)
    state = msgspec.msgpack.decode(machine.snapshot())
    change(state)
    before = machine.snapshot()
    with pytest.raises(Unreadable):
        machine.restore(msgspec.msgpack.encode(state))
    assert machine.snapshot() == before


def filled(users: int) -> PolicyMachine:
    machine = made(PutRole("device"), PutGroup("plant", ("device",)))
    for number in range(users):
        name = f"device-{number:06}.example"
        machine.apply(AddUser(name, HASH + "x" * 60, VERIFIER + "y" * 90, (), ("plant",), {"connections": 2}))
    return machine


@pytest.mark.parametrize(("users", "slower"), [(5_000, 10), pytest.param(USERS_MAX, 1, marks=pytest.mark.slow)])
def test_many_users(users: int, slower: int) -> None:
    """Each is found, the snapshot round-trips, and no view contains any.

    The bounds are for an idle machine; beside other tests they only distinguish linear from quadratic.
    """
    began = time.process_time()
    machine = filled(users)
    applied_s = time.process_time() - began
    began = time.process_time()
    data = machine.snapshot()
    snapshot_s = time.process_time() - began
    began = time.process_time()
    other = PolicyMachine()
    other.restore(data)
    restored_s = time.process_time() - began
    assert other.snapshot() == data and len(other.tables.users) == users
    assert other.user("device-000007.example") is not None
    assert b"device-0" not in encode_view(machine.epoch, machine.tables, machine.digest)
    figures = f"{users} users: {len(data) >> 10} KiB, made {applied_s:.2f} s, {snapshot_s=:.3f}, {restored_s=:.2f}"
    print(figures)
    assert applied_s < slower * users * 200e-6 and snapshot_s < slower, figures
    assert restored_s < slower * users * 50e-6, figures
    if users == USERS_MAX:
        assert f"holds {USERS_MAX} users" in machine.apply(AddUser("one more")).refusal
