"""Policy commands that a hostile router could commit: mostly almost valid, some far from it.

Drawn from a seeded generator: a failing log is reproduced by its seed.
"""

import random
from collections.abc import Callable
from typing import Any, cast

from access.policy.commands import (
    AddBan,
    AddToken,
    AddUser,
    ChangeUser,
    DeleteBan,
    DeleteGroup,
    DeleteRole,
    DeleteToken,
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
)
from access.policy.records import Ban, Revoked, RuleRecord, Token

__all__ = ["random_command"]

ODDS = 0.03  # that a part of a command is far from valid; a command has about six parts
ODD_TEXTS = ["", "x\x00y", "\n", "\ud800", "é" * 200, "z" * 70_000, "+/#", "$SYS", "a#", "a/#/b", "0ab", "10.0.0.1/8"]
ODD_NUMBERS = [-(1 << 63), -1, 64, 1 << 62, (1 << 64) - 1]
ODD_TIMES = [-1.0, float("nan"), float("inf"), 1e300]
HASH = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$"
BANS = [
    ("user", "ann"),
    ("client_id", "c"),
    ("address", "10.0.0.1"),
    ("network", "10.0.0.0/8"),
    ("certificate", "ab" * 32),
]
REVOKED = [("serial", "ab12", "CN=ca"), ("token", "t", ""), ("token", "t", "b")]


class _Draw:
    """Parts of a command."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_

    def one(self, usual: list[Any], odd: list[Any]) -> Any:
        """Usually return a common value."""
        return self.random.choice(odd if self.random.random() < ODDS else usual)

    def text(self, *usual: str) -> str:
        return str(self.one(list(usual), ODD_TEXTS))

    def number(self, *usual: int) -> int:
        return int(self.one(list(usual), ODD_NUMBERS))

    def time(self) -> float:
        return float(self.one([0.0, 10.0, 20.0], ODD_TIMES))

    def user(self) -> str:
        return self.text("ann", "bob", "eve")

    def role(self) -> str:
        return self.text("device", "reader")

    def group(self) -> str:
        return self.text("plant", "office")

    def some(self, draw: Callable[[], str]) -> tuple[str, ...]:
        drawn = [draw() for _ in range(self.random.randrange(3))]
        return tuple(drawn if self.random.random() < ODDS else dict.fromkeys(drawn))

    def limits(self) -> dict[str, int]:
        return {self.text("connections"): self.number(5, 6) for _ in range(self.random.randrange(2))}

    def record(self) -> str:
        return self.text("", f"{HASH}b25l", f"{HASH}dHdv")

    def verifier(self) -> str:
        return self.text("", "SCRAM-SHA-256$4096:c2FsdA$a:b")

    def rule(self) -> RuleRecord:
        return RuleRecord(
            self.random.random() < 0.5,
            self.number(1, 3, 63),
            self.text("a/%c/#", "+/b", "#"),
            self.number(2, 0),
            self.text("", "mqtts"),
            self.text("", "10.0.0.0/8"),
        )

    def banned(self) -> tuple[Any, str]:
        kind, value = self.random.choice(BANS)
        return self.text(kind), self.text(value)

    def revoked(self) -> tuple[Any, str, str]:
        kind, value, issuer = self.random.choice(REVOKED)
        return self.text(kind), self.text(value), self.text(issuer)

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.5 else None


def _revoke(draw: _Draw) -> Revoke:
    kind, value, issuer = draw.revoked()
    return Revoke(Revoked(kind, value, issuer, draw.time(), draw.text("", "lost")))


def _unrevoke(draw: _Draw) -> Unrevoke:
    kind, value, issuer = draw.revoked()
    return Unrevoke(kind, issuer, value)


KINDS: list[Callable[[_Draw], SimpleCommand]] = [
    lambda d: AddUser(d.user(), d.record(), d.verifier(), d.some(d.role), d.some(d.group), d.limits()),
    lambda d: AddUser(d.random.choice(["ann", "bob"])),
    lambda d: ChangeUser(d.user(), d.maybe(d.some(d.role)), d.maybe(d.some(d.group)), d.maybe(d.limits())),
    lambda d: SetPassword(d.user(), d.record(), d.verifier()),
    lambda d: SetDisabled(d.user(), d.random.random() < 0.5),
    lambda d: DeleteUser(d.user()),
    lambda d: PutRole(d.role(), tuple(d.rule() for _ in range(d.random.randrange(3)))),
    lambda d: PutRole(d.role()),
    lambda d: DeleteRole(d.role()),
    lambda d: PutGroup(d.group(), d.some(d.role), d.limits()),
    lambda d: DeleteGroup(d.group()),
    lambda d: AddBan(Ban(*d.banned(), d.time(), d.text("", "flood"))),
    lambda d: DeleteBan(*d.banned()),
    _revoke,
    _unrevoke,
    lambda d: AddToken(
        Token(d.text("t1", "t2"), cast(Any, d.text("viewer", "admin")), d.text("0a", "0b") * 32, d.time())
    ),
    lambda d: DeleteToken(d.text("t1", "t2")),
    lambda d: Prune(d.time()),
]


def random_command(random_: random.Random) -> PolicyCommand:
    """Return a command; one in five is an operator's order."""
    draw = _Draw(random_)
    command = random_.choice(KINDS)(draw)
    return PolicyOrder(draw.text("o1", "o2", "o3", "o4"), command) if random_.random() < 0.2 else command
