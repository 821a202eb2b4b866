"""DTLS at both ends: certificates name devices and nodes; other peers are refused."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from access.files import AccessFileError
from conf.admission import POOLS
from gateways.datagrams.dtls import DtlsFiles, DtlsSocket
from gateways.datagrams.messages import Body, Datagram, DatagramPublish, PubAck, PubConnect
from gateways.datagrams.node_events import Sent
from gateways.datagrams.sockets import bind_udp
from gateways.datagrams.subscribers import DatagramPeer
from tests.gateways.datagrams.device_authority import LOOPBACK, Authority
from tests.gateways.datagrams.test_processes import ROOT, command, node_process
from tests.patience import PATIENCE_S

pytest.importorskip("OpenSSL", reason="package pyOpenSSL is not installed")
from OpenSSL import SSL


class End:
    """One socket, and its received packets."""

    def __init__(self, files: DtlsFiles, is_node: bool) -> None:
        self.port = DtlsSocket(bind_udp("127.0.0.1", 0), files, serves=is_node, opens=not is_node)
        self.received: list[tuple[DatagramPeer, str, Body]] = []

    def send(self, peer: DatagramPeer, body: Body) -> None:
        self.port.send(trio.current_time(), Sent(peer, Datagram(1, body)))

    async def wait(self) -> tuple[DatagramPeer, str, Body]:
        """Return the next packet."""
        while not self.received:
            await self.port.readable()
            self.port.read(trio.current_time(), self._take)
        return self.received.pop(0)

    def _take(self, peer: DatagramPeer, name: str, is_proved: bool, packet: Datagram, length: int) -> None:
        assert is_proved and length > 37
        self.received.append((peer, name, packet.body))


@asynccontextmanager
async def pair(node_files: DtlsFiles, device_files: DtlsFiles) -> AsyncIterator[tuple[End, End]]:
    """Run a node and a device within a block."""
    node, device = End(node_files, True), End(device_files, False)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.port.run)
        await nursery.start(device.port.run)
        try:
            with trio.fail_after(PATIENCE_S):
                yield node, device
        finally:
            nursery.cancel_scope.cancel()
            node.port.close()
            device.port.close()


async def test_a_session_carries_both_ways(tmp_path: Path) -> None:
    """Packets sent before the handshake are queued; oversized ones are not sent."""
    signer = Authority(tmp_path)
    async with pair(signer.files(["west"], [LOOPBACK]), signer.files(["pump"])) as (node, device):
        device.send(DatagramPeer(node.port.endpoint), PubConnect("a"))
        device.send(DatagramPeer(node.port.endpoint), DatagramPublish("a", b"x", 1, 7))
        peer, name, body = await node.wait()
        assert (peer.endpoint, name, body) == (device.port.endpoint, "pump", PubConnect("a")) and peer.session
        assert (await node.wait())[2] == DatagramPublish("a", b"x", 1, 7)
        node.send(peer, PubAck(0))
        node.send(DatagramPeer(peer.endpoint), PubAck(3))
        assert await device.wait() == (DatagramPeer(node.port.endpoint), "", PubAck(0))
        assert (await device.wait())[2] == PubAck(3)
        node.send(peer, DatagramPublish("a", bytes(1160)))
        node.send(DatagramPeer(node.port.endpoint), PubAck(0))
        assert node.port.counts["too_large"] == node.port.counts["no_session"] == 1


async def half_a_handshake(node: End, source: str) -> None:
    """Send the node a ClientHello with its cookie, from an address, and no more: a relay that drops the rest."""
    files_side, far = trio.socket.socket(type=socket.SOCK_DGRAM), trio.socket.socket(type=socket.SOCK_DGRAM)
    with files_side, far:
        await files_side.bind(("127.0.0.1", 0))
        await far.bind((source, 0))
        to = (str(ipaddress.ip_address(node.port.endpoint.ip)), node.port.endpoint.port)
        client = trio.DTLSEndpoint(trio.socket.socket(type=socket.SOCK_DGRAM))
        context = SSL.Context(SSL.DTLS_METHOD)
        before = len(node.port.handshakes) + sum(node.port.handshakes.counts.values())
        with client, client.connect(files_side.getsockname(), context) as channel:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.do_handshake)
                for answers in (1, 0):  # the hello and its cookie, then the hello with it
                    hello, back = await files_side.recvfrom(2_000)
                    await far.sendto(hello, to)
                    if answers:
                        await files_side.sendto(await far.recv(2_000), back)
                while len(node.port.handshakes) + sum(node.port.handshakes.counts.values()) == before:
                    await trio.sleep(0.005)
                nursery.cancel_scope.cancel()


async def test_dtls_device_connects_beside_half_handshakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many as there are slots, each from its own address, with a timeout of 20 s."""
    monkeypatch.setitem(POOLS, "dtls_handshakes", POOLS["dtls_handshakes"]._replace(places_max=8, patience_s=0.0))
    signer = Authority(tmp_path)
    async with pair(signer.files(["west"], [LOOPBACK]), signer.files(["pump"])) as (node, device):
        for number in range(8):
            await half_a_handshake(node, f"127.0.9.{number + 1}")
        assert len(node.port.handshakes) == 4 and node.port.handshakes.counts == {"displaced_slow": 4}
        device.send(DatagramPeer(node.port.endpoint), PubConnect("a"))
        assert (await node.wait())[1:] == ("pump", PubConnect("a"))
        assert node.port.counts["handshakes_full"] == 5 and node.port.known.knows("127.0.0.1", trio.current_time())


async def refused(node_files: DtlsFiles, device_files: DtlsFiles) -> tuple[End, End]:
    """Return both ends after one of them refused the other."""
    async with pair(node_files, device_files) as (node, device):
        device.send(DatagramPeer(node.port.endpoint), PubConnect("a"))
        while not any("refused" in name or "failed" in name for end in (node, device) for name in end.port.counts):
            await trio.sleep(0.005)
        assert not node.received and not device.received
        return node, device


async def test_dtls_node_certificate_without_address_is_refused(tmp_path: Path) -> None:
    """Devices have certificates of the same CA, and must not pass for nodes."""
    signer = Authority(tmp_path)
    _, device = await refused(signer.files(["liar"]), signer.files(["pump"]))
    assert device.port.counts["handshakes_refused"] == 1


@pytest.mark.parametrize("names", [["a", "b"], ["control\x07"]])
async def test_a_certificate_without_one_name_is_refused(tmp_path: Path, names: list[str]) -> None:
    signer = Authority(tmp_path)
    node, _ = await refused(signer.files(["west"], [LOOPBACK]), signer.files(names))
    assert node.port.counts["handshakes_refused"] == 1


@pytest.mark.parametrize("raw", [bytes.fromhex("3002a300"), bytes.fromhex("30028702"), b"\x05\x00"])
async def test_dtls_node_certificate_with_unreadable_names_is_refused(tmp_path: Path, raw: bytes) -> None:
    """An unknown kind of name, a truncated one, and no list: no exception escapes the handshake."""
    signer = Authority(tmp_path)
    await refused(signer.files(["west"], raw=raw), signer.files(["pump"]))


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateways.datagrams.dtls.HANDSHAKE_S", 0.3)
    signer, other = Authority(tmp_path), Authority(tmp_path, "others")
    node, _ = await refused(signer.files(["west"], [LOOPBACK]), other.files(["pump"], trusted=signer.path))
    assert not node.port.counts["handshakes"]


def test_dtls_invalid_files_are_refused(tmp_path: Path) -> None:
    signer = Authority(tmp_path)
    signer.files(["pump"])
    signer.files(["valve"])
    pump, key = tmp_path / "pump.crt", tmp_path / "pump.key"
    with pytest.raises(AccessFileError, match="is not the private key of"):
        DtlsFiles(pump, tmp_path / "valve.key", signer.path)
    with pytest.raises(AccessFileError, match="is not a PEM certificate"):
        DtlsFiles(key, key, signer.path)
    key.chmod(0o644)
    with pytest.raises(AccessFileError):
        DtlsFiles(pump, key, signer.path)


@pytest.mark.slow
def test_nodes_and_devices_as_processes(tmp_path: Path) -> None:
    """A child joins its parent; a message published at one node is printed at the other, with certificates only."""
    signer = Authority(tmp_path)
    for names, alternatives in ((["root"], [LOOPBACK]), (["west"], [LOOPBACK]), (["pump"], []), (["panel"], [])):
        signer.files(names, alternatives)
    (tmp_path / "roles.toml").write_text('[roles.device]\npublish = ["west/#"]\nsubscribe = ["#"]\n')
    (tmp_path / "roles.toml").chmod(0o600)

    def shown(name: str, form: str) -> list[str]:
        files = {"certificate": tmp_path / f"{name}.crt", "key": tmp_path / f"{name}.key", "authority": signer.path}
        return [form.format(option, path) for option, path in files.items()]

    def node(name: str, *settings: str) -> AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]:
        return node_process(tmp_path, name, "udp.security=dtls", *shown(name, "udp.dtls_{}={}"), *settings)

    with (
        node("root", 'udp.children={west=["west"]}') as (address, _),
        node("west", f"udp.parent={address}", "udp.subtree=west"),
    ):
        line = command("sub", "--filter", "#", "--node", address, "--count", "2", *shown("panel", "--{}={}"))
        with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as panel:
            assert panel.stderr is not None and panel.stderr.readline() == "subscribed #\n"
            for topic, code in (("west/t", 0), ("east", 1)):
                line = command("pub", "--topic", topic, "--node", address, *shown("pump", "--{}={}"))
                done = subprocess.run(line, cwd=ROOT, input="1\n2\n", text=True, capture_output=True, timeout=300)
                assert done.returncode == code, done.stderr
            assert panel.communicate(timeout=PATIENCE_S)[0].splitlines() == ["west/t 1", "west/t 2"]
