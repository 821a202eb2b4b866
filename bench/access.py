"""Rules of access: time of a cold decision, of a cached one, of a grant and of compiling.

    python -m bench.access [--rules N]

Cold is a topic without a cached decision, among N rules of one tier, a tenth of them with a wildcard, and beside them
rules with %c. The limit: 2 us of CPU time per decision with 10 000 rules. Results are the best of 7 rounds, thread
CPU time, so that other programs on the machine disturb little.
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

from access.rules.acl_file import parse_acl_file
from access.rules.rights import ConnectionRights, RightsClasses, RightsKey, RouteRights
from access.rules.rules import ALL_ACTIONS, Action, CompiledRules, Subject, Tier, make_rule

ROUNDS = 7
CALLS = 20_000
BAR_US = 2.0
WHO = Subject("device-7", "anna")


def rules(count: int) -> Tier:
    """Return allows and denies over sites, lines and devices."""
    made = []
    for number in range(count):
        topic = ["plant", f"s{number % 100}", f"l{number // 100 % 100}", f"d{number}", "state"]
        if number % 10 == 0:
            kind = number // 10 % 3
            if kind == 0:
                topic[2] = "+"
            elif kind == 1:
                topic[4] = "+"
            else:
                topic[4:] = ["#"]
        made.append(make_rule(number % 7 != 3, ALL_ACTIONS, "/".join(topic)))
    return tuple(made)


def personal() -> Tier:
    """Return rules with placeholders."""
    return (
        make_rule(True, ALL_ACTIONS, "cmd/%c/#"),
        make_rule(True, ALL_ACTIONS, "plant/%u/+/state"),
        make_rule(False, ALL_ACTIONS, "cmd/%c/secret"),
    )


def topics(count: int, rng: random.Random) -> list[str]:
    """Return topics of random devices, and some that no rule knows."""
    names = []
    for _ in range(CALLS):
        number = rng.randrange(count + count // 10)
        names.append(f"plant/s{number % 100}/l{number // 100 % 100}/d{number}/state")
    return names


def best_us(call: Callable[[str], object], names: list[str]) -> float:
    """Return the processor time of one call, the loop around it taken off."""
    found = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for name in names:
            call(name)
        called = time.thread_time_ns()
        for _ in names:
            pass
        found.append((called - began - (time.thread_time_ns() - called)) / len(names) / 1e3)
    return min(found)


def show(name: str, value: float, bar: float | None = None) -> None:
    print(
        f"{name:44} {value:8.2f} us" + ("" if bar is None else f"   bar {bar:g}: {'ok' if value <= bar else 'MISSED'}")
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", type=int, default=10_000)
    options = parser.parse_args()
    rng = random.Random(1)
    tier = rules(options.rules)
    names = topics(options.rules, rng)
    began = time.thread_time()
    policy = CompiledRules((tier,))
    policy.grant("plant/s1/l1/+/state", WHO)
    print(f"{options.rules} rules compiled in {(time.thread_time() - began) * 1e3:.0f} ms, with the trees of grants")
    show("cold decision", best_us(lambda topic: policy.decide(Action.PUBLISH, topic, WHO), names), BAR_US)
    show("cold decision for a whole class", best_us(lambda topic: policy.decide_for_all(Action.PUBLISH, topic), names))
    both = CompiledRules(((*tier, *personal()),))
    show(
        "the same beside three rules with names", best_us(lambda t: both.decide(Action.PUBLISH, t, WHO), names), BAR_US
    )
    own = [f"cmd/device-7/{number}" for number in range(CALLS)]
    show("cold decision by a rule with %c", best_us(lambda t: both.decide(Action.PUBLISH, t, WHO), own), BAR_US)
    tiers = CompiledRules((personal(), tier, personal()))
    show("cold decision in the second of three tiers", best_us(lambda t: tiers.decide(Action.PUBLISH, t, WHO), names))
    classes = RightsClasses(lambda key: key.tiers)
    rights = ConnectionRights(classes.join(RightsKey(tiers=(tier,)), 0.0), WHO)
    route = RouteRights()
    show("kept on the route (plain Python)", best_us(lambda _: rights.judge_publish(names[0], route=route), names))
    late = ConnectionRights(classes.join(RightsKey(tiers=(personal(),)), 0.0), WHO)
    show("kept in the table (plain Python)", best_us(lambda _: late.judge_publish(own[0]), names))
    filters = [f"plant/s{number % 100}/+/d{number}/#" for number in range(CALLS)]
    show("grant of a new filter", best_us(lambda name: policy.grant(name, WHO), filters))
    show(
        "grant of a filter like +/+/+/x",
        best_us(lambda name: policy.grant(name, WHO), [f"+/+/+/x{n}" for n in range(50)]),
    )
    show("grant of a filter by a rule with %c", best_us(lambda _: both.grant("cmd/device-7/#", WHO), filters[:2_000]))
    show("grant of a known filter", best_us(lambda _: policy.grant("plant/s1/#", WHO), filters))
    text = "user anna\n" + "".join(f"topic read plant/{number}/+/state\n" for number in range(options.rules))
    began = time.thread_time()
    parse_acl_file(Path("acl"), text.encode())
    print(f"acl_file of {options.rules} lines read in {(time.thread_time() - began) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
