"""The ``acl`` of a token or an HTTP response, in EMQX's two forms, as tiers.

A list of rules decides in order, so each run of rules with the same permission is a tier. The older form has filters
under ``pub``, ``sub`` and ``all``. A rule without an exact equivalent is narrowed or refused: ``eq`` and regular
expressions are refused, and ``retain: true`` grants RETAIN but not PUBLISH.
"""

from collections.abc import Mapping

from access.rules.rules import PUBLISHING, SUBSCRIBING, AccessRule, Action, Tier, check_cost, make_rule

__all__ = ["RULES_MAX", "read_acl"]

RULES_MAX = 64  # filters of one token
KEYS = frozenset(("permission", "action", "topic", "topics", "qos", "retain", "ipaddr"))
OLDER = {"pub": PUBLISHING, "sub": SUBSCRIBING, "all": PUBLISHING | SUBSCRIBING}
ACTIONS = {"publish": PUBLISHING, "subscribe": SUBSCRIBING, "all": PUBLISHING | SUBSCRIBING}
EVERY_QOS = frozenset((0, 1, 2))


def read_acl(acl: object) -> tuple[Tier, ...]:
    """Return the tiers of an ``acl`` in decoded JSON.

    Raises:
        ValueError: It has another form, or too many rules; none applies, and the text does not quote them.
    """
    if isinstance(acl, list):
        rules = _parse_list(acl)
    elif isinstance(acl, dict):
        rules = _parse_map(acl)
    else:
        raise ValueError("acl is neither a list nor a table")
    tiers: list[list[AccessRule]] = []
    for rule in rules:
        if not tiers or tiers[-1][0].allow != rule.allow:
            tiers.append([])
        tiers[-1].append(rule)
    done = tuple(tuple(tier) for tier in tiers)
    for tier in done:
        check_cost(tier)
    return done


def _parse_map(acl: Mapping[object, object]) -> list[AccessRule]:
    if acl.keys() - OLDER.keys():
        raise ValueError("acl has a word that is none of pub, sub and all")
    named = [(word, topic) for word, actions in OLDER.items() for topic in _texts(acl.get(word, []), word)]
    _check_count(len(named))
    return [_rule(True, OLDER[word], topic, EVERY_QOS) for word, topic in named]


def _parse_list(acl: list[object]) -> list[AccessRule]:
    _check_count(len(acl))
    rules: list[AccessRule] = []
    count = 0
    for number, item in enumerate(acl, 1):
        try:
            topics, more = _parse_item(item)
        except ValueError as error:
            raise ValueError(f"rule {number} of acl: {error}") from None
        count += topics
        _check_count(count)
        rules += more
    return rules


def _parse_item(item: object) -> tuple[int, list[AccessRule]]:
    """Return the number of filters of an item, and its rules."""
    if not isinstance(item, dict):
        raise ValueError("is no table")
    if item.keys() - KEYS:
        raise ValueError(f"has a word that is none of {', '.join(sorted(KEYS))}")
    permission, action = item.get("permission"), item.get("action")
    if permission not in ("allow", "deny"):
        raise ValueError("has a permission that is neither allow nor deny")
    if not isinstance(action, str) or action not in ACTIONS:
        raise ValueError("has an action that is none of publish, subscribe and all")
    if ("topic" in item) == ("topics" in item):
        raise ValueError("needs one of topic and topics")
    topics = _texts([item["topic"]], "topic") if "topic" in item else _texts(item["topics"], "topics")
    allow = permission == "allow"
    network = item.get("ipaddr", "")
    if not isinstance(network, str) or ("ipaddr" in item and not network):
        raise ValueError("has an ipaddr that is no text")
    qos = _qos(item.get("qos"))
    actions = _with_retain(ACTIONS[action], allow, item.get("retain"))
    return len(topics), [rule for topic in topics for rule in _rules(allow, actions, topic, qos, network)]


def _rules(allow: bool, actions: Action, topic: str, qos: frozenset[int], network: str) -> list[AccessRule]:
    """Return the rules of one topic; each contiguous range of QoS needs one rule.

    The QoS of a subscription is the requested one: deliveries use RECEIVE at any QoS, and a deny of some QoS denies no
    delivery.
    """
    if qos == EVERY_QOS:
        return [_rule(allow, actions, topic, qos, network)]
    rules = []
    if allow and actions & Action.RECEIVE:
        rules.append(_rule(True, Action.RECEIVE, topic, EVERY_QOS, network))
    rest = actions & ~Action.RECEIVE
    ranges = [qos] if qos != {0, 2} else [frozenset((0,)), frozenset((2,))]
    if rest:
        rules += [_rule(allow, rest, topic, one, network) for one in ranges]
    return rules


def _rule(allow: bool, actions: Action, topic: str, qos: frozenset[int], network: str = "") -> AccessRule:
    if topic.startswith("eq "):
        raise ValueError("a topic begins with eq, which is not offered")
    return make_rule(allow, actions, topic, max(qos), network=network, qos_min=min(qos))


def _with_retain(actions: Action, allow: bool, retain: object) -> Action:
    if retain is None or retain == "all":
        return actions
    if not isinstance(retain, bool):
        raise ValueError("has a retain that is none of true, false and all")
    if retain:
        return actions & ~(Action.PUBLISH | Action.WILL)  # an allow opens, and a deny closes, RETAIN only
    # A deny of messages without RETAIN also closes those with it, because both need PUBLISH.
    return actions & ~Action.RETAIN if allow else actions


def _qos(qos: object) -> frozenset[int]:
    if qos is None:
        return EVERY_QOS
    given = qos if isinstance(qos, list) else [qos]
    if not given or len(given) > len(EVERY_QOS):
        raise ValueError("has a qos that is none of 0, 1, 2, nor a list of them")
    for one in given:
        if not isinstance(one, int) or isinstance(one, bool) or one not in EVERY_QOS:
            raise ValueError("has a qos that is none of 0, 1, 2, nor a list of them")
    return frozenset(one for one in given if isinstance(one, int))


def _texts(value: object, word: str) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"{word} is no list")
    if len(value) > RULES_MAX:
        raise ValueError(f"{word} names more than {RULES_MAX} topics")
    texts = [text for text in value if isinstance(text, str)]
    if len(texts) != len(value):
        raise ValueError(f"{word} has a topic that is no text")
    return texts


def _check_count(count: int) -> None:
    if count > RULES_MAX:
        raise ValueError(f"acl has more than {RULES_MAX} rules")
