"""Rules in the hot loop: their cost per message, in the loop alone, with rules against without.

    python -m bench.authorizing [--rounds N]

QoS 0 packets are fed to the compiled loop from memory, to topics without a subscriber, so that a message costs little
beside its topic's look-up and the decision. Rules: a role that allows ``#``; 1 000 topics at random; a rule with %c,
whose decisions are per client. Results are the best of alternating rounds, thread CPU time.
Limits: 1, 3 and 20 ns.
"""

import argparse
import random
import time
from types import SimpleNamespace

from access.identity.principal import Principal
from access.rules.role_table import make_role_table
from bench.toy_broker import ToyHandler
from edge.loop import broker_loop, options, state
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.rights.client_rights import ClientRights
from edge.rights.sources import RuleBook, Sources

ROUNDS = 7
MESSAGES = 400_000
CHUNK = 16 * 1024
BARS_NS = {"same topic": 1.0, "1 000 topics at random": 3.0, "a rule with %c": 20.0}
RULES = {"same topic": "#", "1 000 topics at random": "#", "a rule with %c": "t/%c/#"}


class Judging(ToyHandler):
    """The toy broker, with clients authorized by rules as at an edge."""

    def __init__(self, modules: SimpleNamespace) -> None:
        super().__init__(modules)
        self.rights: ClientRights | None = None
        self.client: SimpleNamespace | None = None

    def authorize(self, conn: object, topic: bytes, retain: bool) -> int:
        del conn
        assert self.rights is not None and self.client is not None
        return self.rights.authorize(self.client, topic, retain)


class Loop:
    """One loop with one publisher, with rules or without."""

    def __init__(self, allowed: str | None) -> None:
        handler = Judging(SimpleNamespace(engine=broker_loop, options=options, state=state))
        self.hot = broker_loop.BrokerLoop(handler, 1, options.HotLimits(pacing_ns=0))
        handler.hot = self.hot
        self.hot.set_lease(1 << 62)
        self.hot.begin_turn(1)
        self.conn = self.hot.attach(-1, state.CLIENT, options.ConnOptions(), 1)
        if allowed is not None:
            table = make_role_table({"roles": {"device": {"publish": [allowed]}}})
            book = RuleBook({"plain": Sources(table, authenticated=("device",))})
            handler.rights = ClientRights(self.hot, book, EdgeLimits())
            handler.client = SimpleNamespace(
                conn=self.conn,
                policy=ListenerPolicy("plain", True),
                client_id="c",
                principal=Principal("anna", "password", "c"),
                rights=None,
                bounds=None,
            )
            handler.rights.admit(handler.client, 0.0)
        self.hot.feed(self.conn, bytes([0x10, 13]) + b"\x00\x04MQTT\x04\x02\x00\x00\x00\x01c")
        self.hot.take_output(self.conn, 1 << 20)

    def ns_a_message(self, chunks: list[bytes], messages: int) -> float:
        """Return the thread's processor time of a message, ns."""
        hot, conn = self.hot, self.conn
        began = time.thread_time_ns()
        for number, chunk in enumerate(chunks):
            hot.begin_turn(number + 2)
            hot.feed(conn, chunk)
        spent = time.thread_time_ns() - began
        assert not conn.closed
        return spent / messages


def packets(topics: int) -> tuple[list[bytes], int]:
    """Return chunks of packets and how many there are of these."""
    names = [b"t/c/%04d" % number for number in range(topics)]
    made = [bytes([0x30, 2 + len(name) + 8]) + len(name).to_bytes(2, "big") + name + b"12345678" for name in names]
    rng = random.Random(1)
    each = CHUNK // len(made[0])
    chunks = [b"".join(rng.choices(made, k=each)) for _ in range(64)]
    count = MESSAGES // (each * len(chunks)) or 1
    return chunks * count, each * len(chunks) * count


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    print(f"{'publishes to':26} {'without':>9} {'with':>9} {'rules':>9}   bar")
    for name, bar in BARS_NS.items():
        chunks, messages = packets(1 if name == "same topic" else 1_000)
        off, on = Loop(None), Loop(RULES[name])
        times = [(off.ns_a_message(chunks, messages), on.ns_a_message(chunks, messages)) for _ in range(rounds + 1)][1:]
        without, with_rules = min(one for one, _ in times), min(one for _, one in times)
        cost = with_rules - without
        verdict = "ok" if cost <= bar else "short"
        print(f"{name:26} {without:6.1f} ns {with_rules:6.1f} ns {cost:6.1f} ns   {bar:g}: {verdict}")


if __name__ == "__main__":
    main()
