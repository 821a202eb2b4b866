"""Requests of operators: every argument is validated before a node uses it."""

import msgspec
import pytest

from access.operators.commands import Refusal, arguments_of, tier_of
from wire.messages.operators import Admin

DEEP: object = 0
for _ in range(300):
    DEEP = [DEEP]

WRONG: list[tuple[str, dict[str, object]]] = [
    ("ring plan", {"drain": 5}),
    ("ring plan", {"drain": [5]}),
    ("ring plan", {"drain": ["n" * 65]}),
    ("ring plan", {"drain": ["n"] * 1025}),
    ("ring plan", {"unknown": 1}),
    ("ring delegate", {"depth": []}),
    ("ring delegate", {"prefix": "a", "depth": 0}),
    ("ring delegate", {"prefix": "a", "depth": 1 << 40}),
    ("ring delegate", {"prefix": None, "depth": 1}),
    ("ring lost", {"partition": None}),
    ("ring lost", {"partition": "-1"}),
    ("ring lost", {"partition": DEEP}),
    ("ring recover", {"partition": "1"}),
    ("ring rebalance", {"throttle_bytes_s": -1}),
    ("ring rebalance", {"throttle_bytes_s": "1"}),
    ("cluster join", {"node": "r1", "dry_run": True}),
    ("cluster forget", {}),
    ("membership keys use", {"key_id": "xyz"}),
    ("store export", {"root": "/a", "folder": "/a/b", "now_ms": "now"}),
    ("store export", {"root": "/a\0", "folder": "/a/b", "now_ms": 1}),
    ("store export", {"root": "/a", "folder": "/a/b", "now_ms": 1, "since": {"x": 1}}),
    ("store copies", {"partitions": [-1]}),
    ("store aside remove", {"name": "../store"}),
    ("revoke", {"kind": "serial", "value": "1f", "issuer": "CN=ca"}),
    ("revoke", {"kind": "serial", "value": "1f", "issuer": "AB" * 32}),
    ("revoke", {"kind": "serial", "value": "1f", "issuer": "ab" * 31}),
    ("no such verb", {}),
]


@pytest.mark.parametrize(("verb", "arguments"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_argument_is_refused_in_one_line(verb: str, arguments: dict[str, object]) -> None:
    """The line names the verb and the position of the error."""
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(Admin(1, verb, arguments)), type=Admin, strict=False)
    with pytest.raises(Refusal) as caught:
        arguments_of(sent, tier_of(verb))
    assert verb in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_are_filled_in() -> None:
    """A node gets every argument of the verb."""
    assert arguments_of(Admin(1, "ring plan", {"add": ["s1"]}), "router") == {"add": ["s1"], "drain": []}


def test_a_node_answers_its_own_verbs_only() -> None:
    """A verb of storage nodes is unknown to a router."""
    with pytest.raises(Refusal, match="knows no"):
        arguments_of(Admin(1, "store copies", {"partitions": []}), "router")
    assert (tier_of("store copies"), tier_of("membership keys install")) == ("storage", "router")
