"""One member as a separate process, for tests and measurements on loopback.

    python -m tests.membership.member_process '{"name": ..., "settings": {...}}'

Prints one JSON line per event (``ready`` with the port, node events) and answers commands, one JSON line each, on
standard input: ``members``, ``counters``, ``keys``, ``metadata``, ``leave``. Ends with its standard input.
"""

import json
import sys
import time
from collections import Counter

import trio

from membership.admin import rotate_keys
from membership.events import NodeJoin, NodeLeave, NodeUpdate
from membership.gossip import Gossip
from membership.keyring import parse_key
from membership.metadata import NodeMetadata
from membership.settings import MembershipSettings

LINE_BYTES_MAX = 65536


def say(what: str, **facts: object) -> None:
    """Print one line; the wall clock lets a test compare processes."""
    print(json.dumps({"what": what, "at": time.time(), **facts}), flush=True)


async def tell_events(gossip: Gossip) -> None:
    """Print node events as they arrive."""
    async for event in gossip.events:
        if isinstance(event, NodeJoin | NodeLeave | NodeUpdate):
            say(type(event).__name__, name=event.member.name, state=event.member.state)
        else:
            say(type(event).__name__)


async def command(gossip: Gossip, words: list[str]) -> dict[str, object]:
    """Execute one command line."""
    match words:
        case ["members"]:
            return {"members": {view.name: view.state for view in gossip.members()}}
        case ["counters"]:
            return {"counters": gossip.counters()}
        case ["metadata", zone]:
            now = next(view.metadata for view in gossip.members() if view.is_self)
            gossip.update_metadata(
                NodeMetadata(now.name, now.tier, now.process_incarnation, now.addresses, zone, now.weight)
            )
            return {}
        case ["zones"]:
            return {"zones": {view.name: view.metadata.zone for view in gossip.members()}}
        case ["leave"]:
            await gossip.leave()
            return {}
        case ["keys", operation, *rest]:
            key = parse_key(rest[0]) if operation == "install" else b""
            key_id = bytes.fromhex(rest[0]) if operation in ("use", "remove") else b""
            report = await rotate_keys(gossip, operation, key=key, key_id=key_id)  # type: ignore[arg-type]
            keys = Counter(name for member in report.members for name in member.key_ids)
            return {"complete": report.complete, "failed": report.failed, "refused": report.refused, "keys": keys}
    raise ValueError(words)


async def main() -> None:
    """Run one member until standard input ends."""
    options = json.loads(sys.argv[1])
    metadata = NodeMetadata(options["name"], "storage", int(time.time() * 1000), {"links": "127.0.0.1:1"})
    gossip = Gossip(MembershipSettings(**options["settings"]), metadata)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(gossip.run)
        say("ready", host=host, port=port)
        nursery.start_soon(tell_events, gossip)
        buffered = b""
        async with trio.lowlevel.FdStream(sys.stdin.fileno()) as lines:
            async for part in lines:
                *whole, buffered = (buffered + part).split(b"\n")
                for line in whole:
                    say("answer", **await command(gossip, json.loads(line)))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
