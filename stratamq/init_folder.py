"""`stratamq init DIR`: the folder of a cluster whose nodes run as services.

Writes two authorities (``DIR/tls`` for nodes and operators, ``DIR/clients`` for clients and listeners), a certificate
and a configuration file for each node, and ``cluster.json`` with the addresses of routers. Existing files are never
overwritten. ``stratamq/init_plan.py`` plans the nodes.
"""

import datetime
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from conf.errors import ExitCode, UserError
from conf.private_files import make_private_folder
from membership.keyring import generate_key, write_key_file
from stratamq.client_files import DEVICE_ROLES, write_roles, write_secret
from stratamq.init_plan import GATEWAY, Layout, LayoutNode, gateway_of, lay_out, parse_node
from stratamq.toml_text import toml_document
from wire.links.authority import LOOPBACK, DevelopmentAuthority

__all__ = ["ClusterFolder"]

RECORD = "cluster.json"
HEADING = "# Written by `stratamq init`. All settings with their defaults: conf/{tier}.toml, docs/settings.md.\n"


class ClusterFolder:
    """The folder of a cluster; written paths have the form of ``path``.

    Args:
        path: DIR.
        now: Aware, UTC.
    """

    def __init__(self, path: Path, now: datetime.datetime) -> None:
        self.path = path
        self._now = now

    def create(self, cluster: str, words: Sequence[str]) -> Layout:
        """Create all files of a new cluster.

        Raises:
            UserError: The nodes are invalid (exit code 2), or the folder is not empty or not writable.
        """
        layout = lay_out(cluster, words)
        try:
            if self.path.exists() and any(self.path.iterdir()):
                mend = f"add a node with --add, or use a new folder; {self.path} is unchanged"
                raise UserError(f"{self.path} is not empty: {mend}")
            make_private_folder(self.path)
            try:
                self._create(layout)
            except BaseException:
                self._clear()
                raise
        except OSError as error:
            raise UserError(f"{error.filename or self.path}: {error.strerror or error}") from None
        return layout

    def add(self, words: Sequence[str]) -> tuple[Layout, list[LayoutNode], list[str]]:
        """Create the files of additional nodes, and certificates of gateways.

        Returns:
            The extended layout, the new nodes, and the names of new gateways.
        Raises:
            UserError: A name is invalid (exit code 2), or the cluster, an authority's key or a free path is missing.
        """
        before = self._read()
        layout = before
        for word in words:
            layout = layout if word.startswith(GATEWAY) else layout.add(parse_node(word))
        added = list(layout.nodes[len(before.nodes) :])
        gateways = list(dict.fromkeys(gateway_of(word) for word in words if word.startswith(GATEWAY)))
        for key in (self.path / "tls" / "ca.key", self.path / "clients" / "ca.key"):
            if not key.exists():
                raise UserError(f"{key} is missing: restore the authority's key, which signs the new certificate")
        files = [path for node in added for path in self.files(node, shared=False)]
        for path in [*files, *(path for name in gateways for path in self.gateway_files(name))]:
            if path.exists():
                raise UserError(f"{path} already exists: no file was changed")
        try:
            if not any(node.name.lower() == "admin" for node in layout.nodes):  # folders of earlier releases have none
                self._nodes_authority(layout.cluster).operator("admin", "admin")
            if not any(node.name.lower() == "gateway" for node in layout.nodes):
                self._nodes_authority(layout.cluster).gateway()
            for name in gateways:
                self._nodes_authority(layout.cluster).gateway(name)
            for node in added:
                self._write_node(layout, node)
            self._write_record(layout)
        except OSError as error:
            raise UserError(f"{error.filename or self.path}: {error.strerror or error}") from None
        return layout, added, gateways

    def config(self, node: LayoutNode) -> Path:
        """Return a node's configuration file."""
        return self.path / f"{node.name}.toml"

    def files(self, node: LayoutNode, *, shared: bool = True) -> list[Path]:
        """Return the files that a node needs on its host; ``shared`` includes those of all nodes."""
        tls, clients = self.path / "tls", self.path / "clients"
        files = [self.config(node), tls / f"{node.name}.pem", tls / f"{node.name}.key"]
        files += [tls / "ca.pem", tls / "gossip.key"] if shared else []
        if node.tier == "edge":
            files += [clients / f"{node.name}.pem", clients / f"{node.name}.key"]
            files += [clients / "ca.pem", self.path / "roles.toml", tls / "scram.secret"] if shared else []
        return files

    def gateway_files(self, name: str) -> list[Path]:
        """Return the certificate and key of a gateway."""
        return [self.path / "tls" / f"{name}.pem", self.path / "tls" / f"{name}.key"]

    def _create(self, layout: Layout) -> None:
        self._nodes_authority(layout.cluster).operator()
        self._nodes_authority(layout.cluster).operator("admin", "admin")
        self._nodes_authority(layout.cluster).gateway()
        self._clients_authority(layout.cluster).client("device")
        write_key_file(self.path / "tls" / "gossip.key", [generate_key()])
        for node in layout.nodes:
            self._write_node(layout, node)
        self._write_record(layout)

    def _nodes_authority(self, cluster: str) -> DevelopmentAuthority:
        return DevelopmentAuthority(self.path / "tls", cluster, self._now, f"StrataMQ nodes of {cluster}")

    def _clients_authority(self, cluster: str) -> DevelopmentAuthority:
        return DevelopmentAuthority(self.path / "clients", cluster, self._now, f"StrataMQ clients of {cluster}")

    def _write_node(self, layout: Layout, node: LayoutNode) -> None:
        hosts = LOOPBACK if node.local else (node.host,)
        self._nodes_authority(layout.cluster).node(node.tier, node.name, hosts)
        if node.tier == "edge":
            write_roles(self.path / "roles.toml", DEVICE_ROLES)
            write_secret(self.path / "tls" / "scram.secret")
            names = tuple(dict.fromkeys((node.host, *LOOPBACK)))
            self._clients_authority(layout.cluster).server(node.name, names)
        text = HEADING.format(tier=node.tier) + toml_document(layout.settings(node, self.path))
        descriptor = os.open(self.config(node), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)

    def _write_record(self, layout: Layout) -> None:
        new = self.path / f"{RECORD}.new"
        new.write_text(json.dumps(layout.document(), indent=1) + "\n")
        new.replace(self.path / RECORD)

    def _read(self) -> Layout:
        record = self.path / RECORD
        try:
            return Layout.read(json.loads(record.read_text()))
        except OSError as error:
            why = f"`stratamq init {self.path}` creates a cluster"
            raise UserError(f"{record}: {error.strerror or error}; {why}", ExitCode.USAGE) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{record} is damaged: {error}") from None

    def _clear(self) -> None:
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
