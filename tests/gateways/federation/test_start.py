"""Tests errors at an agent's start, including a refusing broker; each is one line, and the agent exits."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

from conf.data_folder import DataFolder
from conf.errors import UserError
from conf.federate_settings import FEDERATE_DEFAULTS, FederateSettings
from conf.gateway_config import GatewayConfig, load_gateway
from gateways.client import RefusedFilter
from gateways.federation.broker_endpoint import build_client_options
from gateways.federation.events import CaptureFilter, Event, HostDown, HostUp, Recapture
from gateways.federation.host import LocalBroker
from gateways.federation.interest.interest import Interest
from gateways.federation.interest.static import StaticFilters
from gateways.federation.service import main
from gateways.spool import SpoolFile
from gateways.spool_rows import Put, Write
from mqtt import StreamDecoder, encode_packet
from mqtt.packets import Connack, Disconnect, Packet, Suback, Subscribe
from mqtt.reasons import ReasonCode
from stratamq.federate_folder import make_folder
from tests.gateways.test_client import broker
from tests.gateways.test_spool import replace_in
from tests.patience import PATIENCE_S


def load(folder: Path, *flags: str) -> GatewayConfig[FederateSettings]:
    """Return the configuration of agent a, created together with b's."""
    folder.chmod(0o700)
    path, _ = make_folder(folder, "plants", ["a", "b"], ["a-b"])
    settings = ["federate.port=0", "metrics.enabled=false", *flags]
    return load_gateway(("federate", FederateSettings), FEDERATE_DEFAULTS, path, environment={}, flags=settings)


def refused(config: GatewayConfig[FederateSettings]) -> str:
    """Return the line with which the start fails."""

    def never(addresses: dict[str, object]) -> None:
        raise AssertionError(f"it started: {addresses}")

    with pytest.raises(UserError) as raised:
        main(config, never)
    (line,) = str(raised.value).splitlines()
    return line


def spool_of(config: GatewayConfig[FederateSettings]) -> Path:
    folder = config.gateway.data_dir
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / "spool"


def write_spool(path: Path, owner: str, rows: list[Write]) -> None:
    file = SpoolFile(path, owner, 1 << 30)
    file.commit(rows)
    file.close()


OWNER = "agent a of federation plants"


@pytest.mark.parametrize(
    ("owner", "rows", "line"),
    [
        (
            "agent a of federation ships",
            [],
            "belongs to agent a of federation ships, not to agent a of federation plants",
        ),
        ("agent b of federation plants", [], "give each its own data folder"),
        (OWNER, [Put("agent", b"federation", b"ships")], "the spool belongs to federation ships, not to plants"),
        (OWNER, [Put("topic", b"a", b"\xc1")], "a row of the spool cannot be read"),
        (OWNER, [Put("sent", b"a", b"1")], "spool"),
        (OWNER, [Put("interest", b"a", b"1")], "spool"),
    ],
)
def test_a_spool_that_is_not_this_agents(tmp_path: Path, owner: str, rows: list[Write], line: str) -> None:
    """It belongs to another federation or agent, or contains an invalid row."""
    config = load(tmp_path)
    write_spool(spool_of(config), owner, rows)
    assert line in refused(config)


def test_a_spool_that_is_damaged(tmp_path: Path) -> None:
    """In its first page, and in a row whose checksum does not match."""
    config = load(tmp_path)
    spool = spool_of(config)
    spool.write_bytes(os.urandom(8_192))
    spool.chmod(0o600)
    assert "is no spool, or damaged in its first page" in refused(config)
    spool.unlink()
    write_spool(spool, OWNER, [Put("seen", b"key", bytes(8))])
    with sqlite3.connect(spool) as database:
        database.execute("UPDATE rows SET value = x'0000000000000001'")
    database.close()
    assert "damaged (a row of kind seen does not match its checksum)" in refused(config)


def test_a_spool_that_is_damaged_under_a_running_agent(tmp_path: Path) -> None:
    """It is detected while idle, and the agent ends with one line."""
    config = load(tmp_path)
    spool = spool_of(config)
    seen = int(time.time() * 1000).to_bytes(8)
    write_spool(spool, OWNER, [Put("seen", b"the key of row %d" % number, seen) for number in range(1_000)])

    def damage(addresses: dict[str, object]) -> None:
        del addresses
        replace_in(spool, b"the key of row 987", b"the kex of row 987")

    with pytest.raises(UserError, match="damaged") as raised:
        main(config, damage)
    assert len(str(raised.value).splitlines()) == 1


def test_a_spool_that_is_open_to_others_or_in_use(tmp_path: Path) -> None:
    """Two processes with one folder, and a file that others may read."""
    config = load(tmp_path)
    spool = spool_of(config)
    file = SpoolFile(spool, OWNER, 1 << 30)
    assert "in use by another process" in refused(config)
    file.close()
    spool.chmod(0o644)
    assert str(spool) in refused(config)


def test_a_spool_that_is_read_only(tmp_path: Path) -> None:
    """On a disk remounted read-only after a disk error."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root: a disk is mounted read-only")
    config = load(tmp_path)
    path = spool_of(config)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "spool", path.parent], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        write_spool(path, OWNER, [])
        DataFolder(path.parent).close()
        subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)
        assert "read-only" in refused(config).lower()
    finally:
        subprocess.run(["umount", "-l", path.parent], check=False)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["federate.agent=b"], "stratamq://plants/federate/a"),
        (["federate.federation=ships"], "stratamq://plants/federate/a"),
        (["federate.authority=/nowhere"], "/nowhere"),
        (["federate.host=http://x"], "federate.host"),
        (['federate.filters=["a/#/b"]'], "federate.filters: 'a/#/b'"),
        (['federate.policies={b={import=["a#"]}}'], "federate.policies.b: 'a#'"),
        (['federate.filters=["$SYS/#"]'], "federate.filters: '$SYS/#'"),
        (["federate.username=u", "federate.password_file=/nowhere"], "/nowhere"),
    ],
)
def test_invalid_settings_are_reported(tmp_path: Path, flags: list[str], line: str) -> None:
    """A certificate of another name or federation, missing files, invalid filters."""
    assert line in refused(load(tmp_path, *flags))


@pytest.mark.parametrize(
    "flag", ["federate.hold_s=2e9", "federate.dedup_s=2e9", f"federate.advertise={','.join(['a.example:1'] * 17)}"]
)
def test_a_setting_that_neighbours_would_refuse(tmp_path: Path, flag: str) -> None:
    """They would close the link that announces it."""
    with pytest.raises(UserError, match=flag.partition("=")[0]):
        load(tmp_path, flag)


def host_of(
    address: str, folder: Path, put_event: Callable[[Event], None], is_full: Callable[[], bool] = lambda: False
) -> LocalBroker:
    """Return the broker connection, whose rows count as synced at once."""
    settings = load(folder, f"federate.host={address}").settings
    options = build_client_options(settings, (), lambda: True)
    adapter = StaticFilters(Interest([], 60.0, 10))
    return LocalBroker(options, adapter, "m", put_event, lambda _rows, then: then(), is_full, lambda: 0.0, Random(1))


@pytest.mark.parametrize(
    ("flags", "connections"),
    [
        ([], [("", 5, False, 1_024)]),
        (["federate.protocol=3.1.1"], [("", 4, True, 20), ("-b", 4, True, 20), ("-m", 4, False, 20)]),
        (["federate.protocol=3.1.1", "federate.no_local=false"], [("", 4, False, 20), ("-b", 4, False, 20)]),
        (
            ["federate.protocol=3.1.1", "federate.no_local=false", "federate.host_window=500"],
            [("", 4, False, 500), ("-b", 4, False, 500)],
        ),
    ],
)
def test_the_connections_to_a_broker(
    tmp_path: Path, flags: list[str], connections: list[tuple[str, int, bool, int]]
) -> None:
    """MQTT 3.1.1 has two connections, as bridges if echoes are to be suppressed; its window is Mosquitto's default."""
    made = build_client_options(load(tmp_path, *flags).settings, (), lambda: True)
    found = [(each.connect(), each.bounds.window) for each in made]
    assert [(one.client_id, one.protocol_version, one.bridge, window) for one, window in found] == [
        (f"stratamq-federate-a{name}", *rest) for name, *rest in connections
    ]


async def test_a_broker_that_refuses_what_is_captured_ends_the_agent(tmp_path: Path) -> None:
    """The marker's filter was granted and the next one was not."""

    async def refuse(stream: trio.SocketStream, packets: list[Packet]) -> None:
        del packets
        await stream.send_all(encode_packet(Connack(), 5))
        decoder, codes = StreamDecoder(5), [ReasonCode.GRANTED_QOS_2, ReasonCode.NOT_AUTHORIZED]
        while codes:
            for packet in decoder.feed(bytes(await stream.receive_some(65_536))):
                if isinstance(packet, Subscribe):
                    await stream.send_all(encode_packet(Suback(packet.packet_identifier, [codes.pop(0)]), 5))
        await trio.sleep_forever()

    host: LocalBroker | None = None

    def put_event(event: Event) -> None:
        if isinstance(event, HostUp) and host is not None:
            wanted = tuple(CaptureFilter(each, number, True, True) for number, each in ((1, "m"), (2, "a/#")))
            host.recapture(Recapture(wanted, (), 2))

    async with broker(refuse) as address:
        host = host_of(address, tmp_path, put_event)
        text = r"refuses the filter a/# \(0x87\): the agent needs all filters"
        with pytest.raises(RefusedFilter, match=text), trio.fail_after(PATIENCE_S):
            await host.connections[0].client.run()


async def test_a_broker_that_disconnects_the_agent_is_reconnected(tmp_path: Path) -> None:
    """As Mosquitto does with a slow client: the core gets an event, and the next connection begins."""
    connections = 0

    async def leave(stream: trio.SocketStream, packets: list[Packet]) -> None:
        nonlocal connections
        del packets
        connections += 1
        await stream.send_all(encode_packet(Connack(), 5))
        if connections < 3:
            await stream.send_all(encode_packet(Disconnect(ReasonCode.QUOTA_EXCEEDED), 5))
        await trio.sleep_forever()

    events: list[Event] = []
    async with broker(leave) as address, trio.open_nursery() as nursery:
        host = host_of(address, tmp_path, events.append)
        nursery.start_soon(host.connections[0].client.run)
        with trio.fail_after(PATIENCE_S):
            while [type(each) for each in events] != [HostUp, HostDown, HostUp, HostDown, HostUp]:
                await trio.sleep(0.01)
        assert host.is_up and host.counts["connections"] == 3
        nursery.cancel_scope.cancel()
