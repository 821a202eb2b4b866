"""A slow reference that decides rules level by level, with strategies and tables for tests of rules."""

from collections.abc import Sequence

from hypothesis import strategies as st

from access.rules.rules import AccessRule, Action, Placeholder, Subject, Tier

__all__ = ["ALPHABET", "FILTERS", "NAMES", "RULES", "TIERS", "TOPICS", "WHO", "decide", "rule_matches"]


def literal(placeholder: Placeholder, subject: Subject, first: bool) -> str | None:
    """Return the level of a placeholder, None if the name is not a literal level."""
    names = {"client_id": subject.client_id, "user": subject.user, "common_name": subject.common_name}
    text = subject.attributes.get(placeholder.key, "") if placeholder.name == "attribute" else names[placeholder.name]
    bad = text == "" or any(sign in text for sign in ("+", "#", "/", "\0")) or (first and text.startswith("$"))
    return None if bad else text


def rule_matches(rule: AccessRule, topic: str, subject: Subject) -> bool:
    """Return whether a rule applies to a topic name; the client has neither address nor listener."""
    if rule.allow and (rule.listener or rule.network):
        return False
    given = topic.split("/")
    for at, level in enumerate(rule.levels):
        if level == "#":
            return at > 0 or not topic.startswith("$")
        if at == len(given):
            return False
        if isinstance(level, Placeholder):
            text = literal(level, subject, at == 0)
            if text is None:
                return not rule.allow
            if text != given[at]:
                return False
        elif level == "+":
            if at == 0 and topic.startswith("$"):
                return False
        elif level != given[at]:
            return False
    return len(rule.levels) == len(given)


def decide(tiers: Sequence[Tier], action: Action, topic: str, subject: Subject, qos: int = 0) -> bool:
    """Return the decision: deny wins in a tier, the first matching tier decides, no match is a deny."""
    for tier in tiers:
        found = {
            rule.allow
            for rule in tier
            if rule.actions & action and rule.qos_min <= qos <= rule.qos_max and rule_matches(rule, topic, subject)
        }
        if found:
            return False not in found
    return False


# Few levels, so that rules often match topics, and hostile names.
ALPHABET = ("", "a", "b", "$x")
NAMES = st.one_of(
    st.sampled_from(["a", "b", "", "+", "#", "a/b", "$x", "$SYS", "a\0", "%c", "%u", "${username}", ".*", "a+", "a#"]),
    st.text(max_size=4),
)
WHO = st.builds(Subject, NAMES, NAMES, NAMES, st.dictionaries(st.sampled_from(["x", "y"]), NAMES, max_size=2))
TOPICS = (
    st.lists(st.one_of(st.sampled_from(ALPHABET), NAMES), min_size=1, max_size=4)
    .map("/".join)
    .map(lambda topic: topic.replace("+", "p").replace("#", "h"))
    .filter(bool)
)
PLACEHOLDERS = (
    Placeholder("client_id"),
    Placeholder("user"),
    Placeholder("common_name"),
    Placeholder("attribute", "x"),
)
LEVEL = st.sampled_from([*ALPHABET, "a", "+", *PLACEHOLDERS])
LEVELS = st.builds(
    lambda levels, tail: (*levels, *tail), st.lists(LEVEL, min_size=1, max_size=4), st.sampled_from([(), (), ("#",)])
) | st.just(("#",))
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(st.sampled_from([*ALPHABET, "+"]), max_size=4),
    st.sampled_from([(), (), ("#",)]),
).filter(bool)
RULES = st.builds(
    lambda allow, actions, levels, qos: AccessRule(allow, Action(actions), levels, max(qos), qos_min=min(qos)),
    st.booleans(),
    st.integers(1, 31),
    LEVELS,
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
TIERS = st.lists(st.lists(RULES, max_size=5).map(tuple), max_size=3).map(tuple)
