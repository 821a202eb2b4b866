"""Random rules, names and topics against the slow reference: ``python -m tests.access.rules.random_cases --count N``.

Three properties, a million cases of each by default (`make cases`), for a night: a decision equals the reference (check
A4), a name never widens a rule (C1, C2, A6), and a filter is granted only if all of it may be received (A5). Each case
has its own rules. A failing case is printed with its seed and its number, which reproduce it.
"""

import argparse
import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Sequence

from access.rules.rules import AccessRule, Action, CompiledRules, Grant, Placeholder, Subject, Tier
from mqtt.topics import matches
from tests.access.rules.reference import ALPHABET, decide

__all__ = ["PROPERTIES", "Case", "main", "run"]

ACTIONS = (Action.PUBLISH, Action.SUBSCRIBE, Action.RECEIVE, Action.RETAIN, Action.WILL)
SIGNS = ("+", "#", "/", "\0", "$", "$x", "$SYS", "%c", "%u", "${username}", ".*", "(a|b)", "a", "b", "é", "\u202e", " ")
PLACEHOLDERS = (
    Placeholder("client_id"),
    Placeholder("user"),
    Placeholder("common_name"),
    Placeholder("attribute", "x"),
)
LEVELS = (*ALPHABET, "a", "+", *PLACEHOLDERS)
SLICE = 2_000  # cases of one seed: work of one process between two reports

Case = tuple[Sequence[Tier], Subject, str, int]  # rules, client, topic or filter, QoS


def _name(rng: random.Random) -> str:
    """Return a hostile name: a plain level, a filter character, or some joined."""
    if rng.random() < 0.5:
        return rng.choice(ALPHABET)
    if rng.random() < 0.1:
        return "".join(chr(rng.choice((rng.randrange(1, 0xD800), rng.randrange(1, 0x80)))) for _ in range(3))
    return "".join(rng.choice(SIGNS) for _ in range(rng.randint(1, 3)))


def _levels(rng: random.Random, words: Sequence[str | Placeholder]) -> tuple[str | Placeholder, ...]:
    if rng.random() < 0.05:
        return ("#",)
    levels = tuple(rng.choice(words) for _ in range(rng.randint(1, 4)))
    return (*levels, "#") if rng.random() < 0.3 else levels


def _rule(rng: random.Random) -> AccessRule:
    qos = sorted((rng.choice((0, 0, 1, 2)), rng.choice((0, 1, 2, 2))))
    actions = Action(rng.choice((31, 31, 6, 25, rng.randint(1, 31))))
    return AccessRule(rng.random() < 0.7, actions, _levels(rng, LEVELS), qos[1], qos_min=qos[0])


def _tiers(rng: random.Random) -> tuple[Tier, ...]:
    return tuple(tuple(_rule(rng) for _ in range(rng.randint(1, 5))) for _ in range(rng.randint(1, 3)))


def _subject(rng: random.Random) -> Subject:
    return Subject(_name(rng), _name(rng), _name(rng), {"x": _name(rng)} if rng.random() < 0.5 else {})


def _topic(rng: random.Random, subject: Subject) -> str:
    """Return a topic with the client's own names as levels, or parts of them."""
    words = (*ALPHABET, subject.client_id, subject.user, subject.common_name, subject.attributes.get("x", "a"))
    topic = "/".join(rng.choice(words) for _ in range(rng.randint(1, 4)))
    return topic.replace("+", "p").replace("#", "h") or "a"


def decisions(rng: random.Random) -> Case:
    """Decide like the reference; a decision for all clients with the rules applies to this one (A4)."""
    tiers, subject, qos = _tiers(rng), _subject(rng), rng.randrange(3)
    topic, action = _topic(rng, subject), rng.choice(ACTIONS)
    policy, case = CompiledRules(tiers), (tiers, subject, topic, qos)
    wanted = decide(tiers, action, topic, subject, qos)
    assert policy.decide(action, topic, subject, qos) == wanted, (action, case)
    assert not policy.has_levels(subject) or policy.decide_for_all(action, topic, qos) in (None, wanted), (action, case)
    return case


def names(rng: random.Random) -> Case:
    """A permitted topic has the client's names literally, level by level, at the placeholders of a rule (C1, C2, A6).

    All rules are allows, so only a name could widen one.
    """
    allows = tuple(
        AccessRule(True, Action.PUBLISH, _levels(rng, (*PLACEHOLDERS, "a", "+"))) for _ in range(rng.randint(1, 3))
    )
    subject = _subject(rng)
    topic = _topic(rng, subject)
    case = ((allows,), subject, topic, 0)
    if CompiledRules((allows,)).decide(Action.PUBLISH, topic, subject):
        assert any(_reaches(rule.levels, topic, subject) for rule in allows), case
    return case


def _reaches(levels: tuple[str | Placeholder, ...], topic: str, subject: Subject) -> bool:
    """Compare as text: at a placeholder the topic's level must equal the name."""
    given, wanted = topic.split("/"), list(levels)
    if wanted[-1] == "#":
        wanted.pop()
        given = given[: len(wanted)] if len(given) >= len(wanted) else []
    if len(given) != len(wanted) or (topic.startswith("$") and levels[0] in ("#", "+")):
        return False
    values = {"client_id": subject.client_id, "user": subject.user, "common_name": subject.common_name}
    for at, (level, own) in enumerate(zip(wanted, given, strict=True)):
        if isinstance(level, Placeholder):
            if (
                not own
                or (at == 0 and own.startswith("$"))
                or own != values.get(level.name, subject.attributes.get("x"))
            ):
                return False
        elif level not in ("+", own):
            return False
    return True


TOPICS = ["/".join(levels) for depth in (1, 2, 3) for levels in itertools.product(ALPHABET, repeat=depth)]
TOPICS.remove("")
FILTERS = {
    text: [topic for topic in TOPICS if matches(text, topic)]
    for depth in (0, 1, 2, 3)
    for levels in itertools.product((*ALPHABET, "+"), repeat=depth)
    for tail in ((), ("#",))
    if (text := "/".join((*levels, *tail)))
}
FILTER_NAMES = list(FILTERS)


def grants(rng: random.Random) -> Case:
    """GRANTED is every topic of the filter and REFUSED none, by all topics of a small alphabet (A5)."""
    tiers, subject, qos = _tiers(rng), _subject(rng), rng.randrange(3)
    text = rng.choice(FILTER_NAMES)
    grant, case = CompiledRules(tiers).grant(text, subject, qos), (tiers, subject, text, qos)
    if grant is not Grant.PARTIAL:
        for topic in FILTERS[text]:
            both = all(decide(tiers, action, topic, subject, qos) for action in (Action.SUBSCRIBE, Action.RECEIVE))
            assert both == (grant is Grant.GRANTED), (grant, topic, case)
    return case


PROPERTIES: dict[str, Callable[[random.Random], Case]] = {
    "decisions": decisions,
    "names": names,
    "grants": grants,
}


def run(name: str, seed: int, number: int, count: int) -> str:
    """Run a slice of cases; return the failure, empty if there is none."""
    rng = random.Random(f"{name}/{seed}/{number}")
    check = PROPERTIES[name]
    for at in range(count):
        try:
            check(rng)
        except Exception as error:
            return f"{name}, seed {seed}, slice {number}, case {at}: {type(error).__name__} {error}"
    return ""


def _task(words: tuple[str, int, int, int]) -> str:
    return run(*words)


def main() -> int:
    """Run all three; return 1 if one case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="cases of each property")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    failures: list[str] = []
    with multiprocessing.Pool(options.jobs) as pool:
        for name in PROPERTIES:
            began = time.monotonic()
            sizes = [SLICE] * (options.count // SLICE) + [options.count % SLICE] * (options.count % SLICE > 0)
            tasks = [(name, options.seed, number, size) for number, size in enumerate(sizes)]
            found = [failure for failure in pool.imap_unordered(_task, tasks) if failure]
            print(f"{name}: {sum(sizes):,} cases, {len(found)} failed, {time.monotonic() - began:.0f} s", flush=True)
            failures += found
    print(*failures[:10], sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
