"""Clients with subscriptions that stall a node: ``hostile_subscribers.py KIND PORTS COUNT TOPICS SECONDS``.

They prepare, print ``ready``, wait for a line, attack, and print the counts as JSON. A kind's function
is a generator: the code before its first yield is preparation.
"""

import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from tests.clients import packets
from tests.e2e.hostile_clients import connect, publish

PATIENCE_S = 120.0  # for one answer of the edge
READ_BYTES = 1 << 18
SESSION_EXPIRY = packets.session_expiry(3600)
NO_RETAINED = 0x20  # retain handling 2
FLOOD_AT_ONCE = 100  # publishes between two checks whether the edge keeps up
FILTERS_PER_MEMBER = 250
Totals = dict[str, float]


def topic(number: int) -> bytes:
    """Return one of the many topics."""
    return b"load/%d/%d" % (number % 100, number)


def filters(count: int) -> list[bytes]:
    """Return wildcard filters to match against each topic: a few match all, some 1 %, most a single one."""
    broad = [b"#", b"+/#", b"load/#", b"+/+/#", b"load/+/+"]
    some = [b"+/%d/+" % number for number in range(min(100, count // 10))]
    return (broad + some + [b"+/+/%d" % number for number in range(count)])[:count]


subscribe = partial(packets.subscribe, version=5)
unsubscribe = partial(packets.unsubscribe, version=5)


class Attacker:
    """One client that parses only packet types."""

    def __init__(self, port: int, name: bytes, properties: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = packets.Splitter()
        self.send(connect(name, properties=properties))
        self.wait(0x20)

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self.socket.sendall(data)

    def wait(self, kind: int, count: int = 1) -> None:
        """Read until so many packets of a type came."""
        while count:
            data = self.socket.recv(READ_BYTES)
            assert data, "the edge closed the connection"
            count -= sum(packet[0] & 0xF0 == kind for packet in self._splitter.feed(data))

    def discard(self) -> int:
        """Discard unread input; return its number of bytes."""
        bytes_read = 0
        self.socket.setblocking(False)
        with suppress(BlockingIOError):
            while data := self.socket.recv(READ_BYTES):
                bytes_read += len(data)
        self.socket.settimeout(PATIENCE_S)
        return bytes_read

    def cut(self) -> None:
        """Go without a word: the edge sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def many_filters(ports: list[int], count: int, properties: bytes, seconds: float) -> Iterator[Totals]:
    """SUBSCRIBE and UNSUBSCRIBE of all filters in one packet each, again and again, then SUBSCRIBE and a cut."""
    client = Attacker(ports[0], b"filters-%d" % os.getpid(), properties)
    names = filters(count)
    yield {}
    end, rounds, subscribe_s, unsubscribe_s = time.monotonic() + seconds, 0, 0.0, 0.0
    while not rounds or time.monotonic() < end:
        began = time.monotonic()
        client.send(subscribe(names))
        client.wait(0x90)
        subscribed = time.monotonic()
        client.send(unsubscribe(names))
        client.wait(0xB0)
        subscribe_s = max(subscribe_s, subscribed - began)
        unsubscribe_s = max(unsubscribe_s, time.monotonic() - subscribed)
        rounds += 1
    client.send(subscribe(names))
    client.wait(0x90)
    client.cut()
    yield {"rounds": rounds, "subscribe_s": subscribe_s, "unsubscribe_s": unsubscribe_s}


def leavers(ports: list[int], count: int) -> Iterator[Totals]:
    """Subscribers of # that disconnect at the same time as those of the other edges."""
    clients = [Attacker(ports[number % len(ports)], b"leaver-%d" % number) for number in range(count)]
    for client in clients:
        client.send(subscribe([b"#"], NO_RETAINED))
    for client in clients:
        client.wait(0x90)
    poll = select.poll()
    by_descriptor = {client.socket.fileno(): client for client in clients}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    poll.register(0, select.POLLIN)
    print("ready", flush=True)
    while 0 not in (readable := [descriptor for descriptor, _ in poll.poll()]):
        for descriptor in readable:
            by_descriptor[descriptor].discard()
        time.sleep(0.05)
    yield {}
    for client in clients:
        client.cut()
    yield {"cut": count}


def comers_and_goers(ports: list[int], seconds: float) -> Iterator[Totals]:
    """One client subscribes to # and lets it go, another one connects, subscribes and goes, again and again."""
    client = Attacker(ports[0], b"changer")
    yield {}
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        goer = Attacker(ports[0], b"goer")
        goer.send(subscribe([b"#"]))
        client.send(subscribe([b"#"]))
        client.wait(0x90)
        client.send(unsubscribe([b"#"]))
        client.wait(0xB0)
        goer.wait(0x90)
        goer.cut()
        rounds += 1
    yield {"rounds": rounds}


def groups(ports: list[int], count: int, topics: int, seconds: float) -> Iterator[Totals]:
    """Shared groups on #, then messages on many topics at every edge."""
    members: list[Attacker] = []
    for start in range(0, count, FILTERS_PER_MEMBER):
        member = Attacker(ports[len(members) % len(ports)], b"member-%d" % start)
        names = [b"$share/group-%d/#" % number for number in range(start, min(count, start + FILTERS_PER_MEMBER))]
        member.send(subscribe(names))
        member.wait(0x90)
        members.append(member)
    publishers = [Attacker(port, b"flood-%d" % number) for number, port in enumerate(ports)]
    yield {}
    end, sent, bytes_read = time.monotonic() + seconds, 0, 0
    while sent < topics and time.monotonic() < end:
        some = b"".join(publish(topic(number), b"x") for number in range(sent, sent + FLOOD_AT_ONCE))
        for publisher in publishers:
            publisher.send(some + b"\xc0\0")
        for publisher in publishers:
            publisher.wait(0xD0)
        bytes_read += sum(member.discard() for member in members)
        sent += FLOOD_AT_ONCE
    yield {"topics": sent, "delivered_mb": bytes_read / 1e6}


def main(kind: str, ports: list[int], count: int, topics: int, seconds: float) -> None:
    """Prepare, print ready, wait, attack, report."""
    os.nice(5)  # the attackers share the machine with the edge
    attack = {
        "filters": lambda: many_filters(ports, count, b"", seconds),
        "stored_filters": lambda: many_filters(ports, count, SESSION_EXPIRY, seconds),
        "leavers": lambda: leavers(ports, count),
        "comers_and_goers": lambda: comers_and_goers(ports, seconds),
        "groups": lambda: groups(ports, count, topics, seconds),
    }[kind]()
    next(attack)
    if kind != "leavers":  # they read while they wait
        print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(next(attack)), flush=True)


if __name__ == "__main__":
    kind, ports, count, topics, seconds = sys.argv[1:]
    main(kind, [int(port) for port in ports.split(",")], int(count), int(topics), float(seconds))
