"""Each node in its own network namespace, all on one bridge: partitions in the kernel.

A link is cut in one direction by giving its sender a wrong hardware address for its receiver: packets disappear
without a refusal or an error. Needs root; the process must already be in a private namespace
(``enter_own``), so that the machine's own network is untouched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence

CLONE_NEWNET = 0x4000_0000
HUB_ADDRESS = "10.77.0.1"  # where the clients are
NOWHERE = "02:de:ad:00:00:01"
BRIDGE = "chaos"

__all__ = ["HUB_ADDRESS", "Namespaces", "available", "enter_own"]


def available() -> bool:
    """Return whether namespaces can be made here."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "nsenter"))


def enter_own() -> None:
    """Move this process to a new network namespace, with loopback.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    _ip("link set lo up")


class Namespaces:
    """The network of one cluster."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = list(nodes)
        self._names = {node: f"chaos{os.getpid()}-{node}" for node in nodes}
        self._cuts: set[tuple[str, str]] = set()
        _ip(f"link add {BRIDGE} type bridge", f"addr add {HUB_ADDRESS}/24 dev {BRIDGE}", f"link set {BRIDGE} up")
        for number, node in enumerate(self._nodes):
            name = self._names[node]
            _ip(f"netns add {name}")
            _ip(
                f"link add v{number} type veth peer name eth0 address {self._mac(node)} netns {name}",
                f"link set v{number} master {BRIDGE} up",
            )
            _ip("link set lo up", f"addr add {self.address(node)}/24 dev eth0", "link set eth0 up", namespace=name)
        for node in self._nodes:
            _ip(
                *(self._neighbour(other, self._mac(other)) for other in self._nodes if other != node),
                namespace=self._names[node],
            )

    def address(self, node: str) -> str:
        """Return a node's address."""
        return f"10.77.0.{10 + self._nodes.index(node)}"

    def command(self, node: str) -> list[str]:
        """Return the prefix of a node's command; the process identifier stays the same."""
        return ["nsenter", f"--net=/run/netns/{self._names[node]}", "--"]

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts.add((sender, receiver))
        _ip(self._neighbour(receiver, NOWHERE), namespace=self._names[sender])

    def heal(self) -> None:
        for sender, receiver in sorted(self._cuts):
            _ip(self._neighbour(receiver, self._mac(receiver)), namespace=self._names[sender])
        self._cuts.clear()

    def close(self) -> None:
        for number, name in enumerate(self._names.values()):
            subprocess.run(["ip", "link", "del", f"v{number}"], check=False)  # the kernel ends a namespace later
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)

    def _mac(self, node: str) -> str:
        return f"02:00:00:00:00:{10 + self._nodes.index(node):02x}"

    def _neighbour(self, receiver: str, mac: str) -> str:
        return f"neigh replace {self.address(receiver)} lladdr {mac} nud permanent dev eth0"


def _ip(*commands: str, namespace: str = "") -> None:
    options = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *options, "-batch", "-"], input="\n".join(commands) + "\n", text=True, check=True)
