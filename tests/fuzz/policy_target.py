"""Fuzz targets of the policy from a router to a node: steps, a view in pages, and exchanges with a follower.

Undecodable input is refused with the documented error and leaves the view unchanged. Accepted input moves the view
forward only, and an edge can authorize by it: rules of its roles, its bans and its groups.
"""

import contextlib
import random
from typing import Any
from zlib import crc32

import msgspec

from access.limits.bans import Ban
from access.policy import commands as c
from access.policy.follower import PolicyFollower
from access.policy.machine import PolicyMachine
from access.policy.pages import STEPS_MAX, PolicyPage, PolicyReader
from access.policy.records import Revoked, RuleRecord
from access.policy.step import PolicyStep, decode_step, encode_step
from access.policy.view import PolicyView, encode_view
from tests.access.policy.whole_views import decode_view
from tests.fuzz.nested import mutate_tree
from wire.decoding import Unreadable
from wire.messages.control import Control, decode_control, encode_control
from wire.messages.nodes import HeartbeatReply
from wire.messages.policy import FollowPolicy, PolicyPaged, PolicyStepped

__all__ = ["STEPS", "TALKS", "VIEWS", "mutate_talk", "steps", "talks", "views"]

_COMMANDS: tuple[c.SimpleCommand, ...] = (
    c.PutRole("device", (RuleRecord(True, 31, "a/%u/#"), RuleRecord(False, 2, "a/+/x", 1, "tls", "10.0.0.0/8")), 5),
    c.PutRole("shares", (RuleRecord(True, 32, "g"),)),
    c.PutGroup("all", ("device",), {"publish_rate_max": 5}),
    c.AddUser("ann", groups=("all",)),
    c.AddBan(Ban("user", "eve", 5.0, "why")),
    c.AddBan(Ban("network", "10.0.0.0/8")),
    c.Revoke(Revoked("serial", "1f", "ab" * 32)),
    c.ChangeUser("ann", groups=()),
    c.PutRole("device", (RuleRecord(True, 1, "b"),)),
    c.DeleteBan("user", "eve"),
    c.DeleteGroup("all"),
)


def _history() -> tuple[tuple[bytes, ...], bytes, int]:
    """Return the steps of these commands, and the view in their middle with its epoch."""
    machine = PolicyMachine()
    made, view, at = [], b"", 0
    for number, command in enumerate(_COMMANDS, 1):
        step = machine.apply(command).step
        assert step is not None
        made.append(encode_step(step))
        if number == 7:
            view, at = encode_view(machine.epoch, machine.tables, machine.digest), machine.epoch
    return tuple(made), view, at


STEPS, _VIEW, _EPOCH = _history()
VIEWS = (_VIEW, encode_view(0, PolicyMachine().tables, b""))


def _is_usable(view: PolicyView, names: Any) -> None:
    """Query a view as an edge does."""
    view.tiers([*names, "device", "shares"])
    assert isinstance(view.groups_named, bool)
    view.bans.of_principal("eve", "c", "", 1.0)
    view.bans.of_address("10.0.0.1", 1.0)
    view.group("all")


def steps(data: bytes) -> None:
    """A step is equal after encoding and decoding, and follows a view or leaves it unchanged."""
    try:
        step = decode_step(data)
    except Unreadable:
        return
    again = decode_step(encode_step(step))
    assert again == step
    view = decode_view(_VIEW)
    before = view.epoch
    for epoch in (step.epoch, before + 1):
        moved = msgspec.structs.replace(step, epoch=epoch)
        try:
            view.apply(moved)
        except ValueError:
            assert view.epoch == before
        else:
            assert view.epoch == epoch == before + 1
            break
    _is_usable(view, step.roles)


def views(data: bytes) -> None:
    """Pages of any cut give the view or None, and never an older one than the node's."""
    size = 1 + (data[-1] if data else 0)
    with contextlib.suppress(Unreadable):
        whole = decode_view(data)
        _is_usable(whole, ())
    for epoch in (_EPOCH, 0):
        for own in (0, _EPOCH):
            view = _read(data, epoch, own, size)
            if view is not None:
                assert view.epoch == epoch >= own
                _is_usable(view, ())


def _read(data: bytes, epoch: int, own: int, size: int) -> PolicyView | None:
    reader, view = PolicyReader(), None
    for offset in range(0, len(data), size):
        page = PolicyPage(epoch, offset, len(data), crc32(data), data[offset : offset + size])
        try:
            view = reader.take(page, own)
        except ValueError:
            assert reader.wanted is None, "what cannot be taken is forgotten"
            return None
    return view


# --- a router, and the follower of a node

_PAGES = [
    PolicyPaged(_EPOCH, offset, len(_VIEW), crc32(_VIEW), _VIEW[offset : offset + 60])
    for offset in range(0, len(_VIEW), 60)
]
_TOLD = [PolicyStepped(step) for step in STEPS]
_BEAT = HeartbeatReply(1, 1.0, 2.0, 1, "r2", 1, _EPOCH)
_TALKED: tuple[list[Control], ...] = (
    [*_PAGES, *_TOLD[7:]],
    [*_TOLD],
    [*_PAGES[:1], *_TOLD[7:9], *_PAGES[1:], _BEAT, *_TOLD[9:]],
    [PolicyPaged(0, 0, 0, 0, b""), *_TOLD[:3], _BEAT, *_PAGES],
)
TALKS = tuple(msgspec.msgpack.encode([encode_control(message) for message in talk]) for talk in _TALKED)


def talks(data: bytes) -> None:
    """For any router messages, the view moves forward only, each change is reported to its users, and state is
    bounded.
    """
    try:
        talk = msgspec.msgpack.decode(data, type=list[bytes])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    node = _Node()
    for number, payload in enumerate(talk[: 2 * STEPS_MAX]):
        try:
            message = decode_control(payload)
        except msgspec.DecodeError:
            continue
        node.take(float(number), message)


def mutate_talk(corpus: tuple[bytes, ...], rng: random.Random) -> bytes:
    """Return an exchange with messages damaged as trees, inside or outside, omitted, duplicated or reordered."""
    try:
        talk = msgspec.msgpack.decode(rng.choice(corpus), type=list[bytes])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not talk:
            break
        at = rng.randrange(len(talk))
        match rng.randrange(5):
            case 0:
                del talk[at]
            case 1:
                talk.insert(rng.randrange(len(talk) + 1), talk[at])
            case 2:
                talk[at] = mutate_tree((talk[at],), rng)
            case _:
                talk[at] = _damaged_inside(talk[at], rng)
    return msgspec.msgpack.encode(talk)


def _damaged_inside(payload: bytes, rng: random.Random) -> bytes:
    try:
        message = decode_control(payload)
    except msgspec.DecodeError:
        return payload
    if isinstance(message, PolicyStepped):
        return encode_control(PolicyStepped(mutate_tree((message.step,), rng)))
    if isinstance(message, PolicyPaged):  # a whole view in one page
        data = mutate_tree((_VIEW,), rng)
        return encode_control(PolicyPaged(message.epoch, 0, len(data), crc32(data), data))
    return payload


class _Node:
    """A node that follows two routers."""

    def __init__(self) -> None:
        self.told = 0
        self.follower = PolicyFollower(self._send, self._stepped, self._replaced, lambda _: None)
        for router in ("r1", "r2"):
            self.follower.router_up(router, 0.0)

    def _send(self, router: str, message: Control) -> bool:
        assert router in ("r1", "r2") and isinstance(message, FollowPolicy)
        return True

    def _stepped(self, step: PolicyStep) -> None:
        self.told = step.epoch
        _is_usable(self.follower.view, step.roles)

    def _replaced(self, view: PolicyView) -> None:
        assert view is self.follower.view
        self.told = view.epoch
        _is_usable(view, ())

    def take(self, now: float, message: Control) -> None:
        """Process a message in its own iteration."""
        before = self.follower.received
        self.follower.step(now)
        self.follower.handle(now, self.follower.following, message)
        after = self.follower.received
        assert after >= before, "rights that were taken would come back"
        assert after in (before, self.told), "nobody was told of the view that is in force"
