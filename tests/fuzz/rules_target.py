"""Fuzz targets of rules: access rules in files and claims, and decisions about any name and topic.

A file is read completely or refused with its documented error. The result decides like the slow reference, also
for names from the input, and a granted filter reaches no topic that is refused.
"""

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from access.files import AccessFileError
from access.rules.acl_file import parse_acl_file
from access.rules.claims import read_acl
from access.rules.role_table import parse_role_table
from access.rules.rules import Action, CompiledRules, Grant, Subject, Tier
from mqtt.errors import MqttError
from mqtt.topics import matches, validate_topic_filter
from tests.access.rules.reference import decide

__all__ = ["ACLS", "RULES", "acls", "rules"]

PATH = Path("fuzzed")
RULES_MAX = 200  # above it the reference takes too long
TOPICS = ("a", "a/b", "a/b/c", "$SYS/a", "/", "b")
ACTIONS = (Action.PUBLISH, Action.SUBSCRIBE, Action.RECEIVE, Action.RETAIN, Action.WILL)

ACLS = (
    b"u\0c\0a/b\0\0topic read a/#\nuser u\ntopic write %c/a\ntopic deny a/b\npattern readwrite a/%u/%c\n"
    b"pattern deny b/%u",
    b"+\0a/b\0a/+\0\0pattern read %u/#\npattern deny a/%u\ntopic $SYS/#\n",
    b'u\0c\0a/b\0\1[roles.x]\npublish = ["a/%u/#"]\nsubscribe = ["+/b"]\ndeny = ["a/${clientid}"]\nqos_max = 1\n'
    b'[users.u]\nroles = ["x"]\n',
    b'u\0c\0#\0\2[{"permission": "deny", "action": "all", "topic": "a/${username}", "qos": [0, 2], "retain": true},'
    b'{"permission": "allow", "action": "publish", "topics": ["a/#", "b"], "ipaddr": "10.0.0.0/8"}]',
    b'$x\0\0a\0\2{"pub": ["%u/#"], "sub": ["${client_attrs.x}/+"], "all": ["#"]}',
)
# Levels and names in few bytes, for mutation to find rules that meet.
RULES = (
    bytes((0, 0, 1, 2, 0x41, 0, 3, 4, 0x02, 1, 6, 0x83, 2, 7, 1)),
    bytes((4, 6, 0, 1, 0xC3, 8, 1, 7, 0x21, 9, 3, 1, 5, 0xE2, 10, 7)),
    bytes(range(0, 240, 7)),
)
LEVELS = ("a", "b", "", "$x", "+", "%c", "%u", "#", "${cert_common_name}", "${client_attrs.x}", "a")
NAMES = ("a", "b", "", "+", "#", "a/b", "$x", "a\0", "%u", ".*", "$SYS", "é")
EVERY_TOPIC = ["/".join(levels) for depth in (1, 2, 3) for levels in itertools.product(("a", "b", "$x"), repeat=depth)]


def acls(data: bytes) -> None:
    """Read a file or a claim: user, client ID and filter up to a NUL each, a byte for the form, and its content."""
    parts = data.split(b"\0", 3)
    if len(parts) < 4 or not parts[3]:
        return
    user, client_id, topic_filter = (part.decode("utf-8", "replace") for part in parts[:3])
    form, content = parts[3][0] % 3, parts[3][1:]
    tiers: Sequence[Tier] = ()
    if form == 2:
        with contextlib.suppress(ValueError, RecursionError, msgspec.DecodeError):  # no JSON is no claim
            tiers = read_acl(msgspec.json.decode(content))
    else:
        try:
            if form == 0:
                tiers = parse_acl_file(PATH, content).tiers(user, client_id)
            else:
                table = parse_role_table(PATH, content)
                tiers = table.tiers(table.roles(user, ["x"]))
        except AccessFileError as error:
            assert error.message.isprintable() and len(error.message) < 400, error.message
    if sum(map(len, tiers)) <= RULES_MAX:
        _compare(tiers, Subject(client_id, user, attributes={"x": client_id}), topic_filter)


def rules(data: bytes) -> None:
    """Decide by made rules: three bytes for names, one for a filter, then rules of a head and up to four levels."""
    if len(data) < 4:
        return
    names = [NAMES[byte % len(NAMES)] for byte in data[:3]]
    who = Subject(names[0], names[1], names[2], {"x": names[0]} if data[0] & 0x80 else {})
    lines: list[dict[str, object]] = []
    at = 4
    while at < len(data) and len(lines) < 40:
        head, count = data[at], (data[at] & 3) + 1
        levels = [LEVELS[byte % len(LEVELS)] for byte in data[at + 1 : at + 1 + count]]
        at += 1 + count
        lines.append(
            {
                "permission": "deny" if head & 0x80 else "allow",
                "action": ("all", "publish", "subscribe", "all")[head >> 5 & 3],
                "topic": "/".join(levels),
                **({"qos": [head >> 2 & 1, 2]} if head & 0x10 else {}),
            }
        )
    tiers: list[Tier] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            tiers += read_acl([line])
    joined = tuple(rule for tier in tiers for rule in tier)  # a deny overrides earlier rules, too
    levels = [LEVELS[byte % 5] for byte in (data[3], data[3] // 5, data[3] // 25)]
    for every in (tiers, (joined,), (*tiers[:2], joined)):
        _compare(every, who, "/".join(levels) + ("/#" if data[3] & 1 else ""))


def _compare(tiers: Sequence[Tier], who: Subject, topic_filter: str) -> None:
    policy = CompiledRules(tiers)
    for topic in (*TOPICS, who.user, who.client_id, f"a/{who.user}/{who.client_id}", topic_filter):
        if topic and "+" not in topic and "#" not in topic:
            for action in ACTIONS:
                wanted = decide(tiers, action, topic, who, 1)
                assert policy.decide(action, topic, who, 1) == wanted, (action, topic)
                if policy.has_levels(who):
                    assert policy.decide_for_all(action, topic, 1) in (None, wanted), (action, topic)
    grant = policy.grant(topic_filter, who, 1)
    try:
        validate_topic_filter(topic_filter)
    except MqttError:
        assert grant is Grant.REFUSED
        return
    if topic_filter.startswith("$share/"):
        return
    for topic in EVERY_TOPIC:
        if grant is not Grant.PARTIAL and matches(topic_filter, topic):
            both = all(decide(tiers, action, topic, who, 1) for action in (Action.SUBSCRIBE, Action.RECEIVE))
            assert both == (grant is Grant.GRANTED), (topic_filter, topic)
