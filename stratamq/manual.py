"""Generates the reference documents in ``docs`` (settings, log events, certificates) and ``conf/<tier>.toml``.

``python -m stratamq.manual`` writes them, ``--check`` reports outdated ones. Text, defaults and bounds come from the
models; this module lists only the values of shipped files that differ from the defaults.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from conf.balance_settings import BalanceListener
from conf.bridge_settings import BRIDGE_KINDS, BridgeSettings, GatewaySettings
from conf.edge_settings import ListenerSettings
from conf.federate_settings import FederateSettings, PolicySettings
from conf.settings import ADMIN, BALANCE, ROOMS, TIERS
from conf.udp_settings import UdpSettings
from stratamq.alert_rules import alarm_table, alert_rules
from stratamq.bridge_manual import bridge_file, nested_tables
from stratamq.certificate_rights import insert_rights
from stratamq.event_manual import event_page
from stratamq.federate_manual import federate_file
from stratamq.packages import membership_model
from stratamq.toml_text import toml_literal
from stratamq.udp_manual import udp_file

__all__ = ["documents", "main"]

ROOT = Path(__file__).parent.parent

# Values of the shipped files that differ from the defaults, which are for a local cluster.
SHIPPED: dict[str, dict[str, str]] = {
    "edge": {
        "node.id": '"edge-0"',
        "node.data_dir": '"data/edge-0"',
        "node.seeds": '["127.0.0.1:7947"]',
        "node.link_port": "7949",
        "membership.bind": '"127.0.0.1:0"',
        "membership.seeds": '["127.0.0.1:7946"]',
        "edge.keep_alive_max_s": "1200",
        "edge.connect_rate_max": "200.0",
        "edge.publish_rate_max": "10000.0",
        "edge.filters_per_packet_max": "100",
        "edge.share_join_rate_max": "100.0",
        "edge.user_properties_max": "64",
        "edge.retained_rate_max": "1000.0",
        "edge.takeovers_max": "5",
        "edge.will_rate_max": "100.0",
        "metrics.port": "9749",
    },
    "router": {
        "node.id": '"router-0"',
        "node.data_dir": '"data/router-0"',
        "node.link_port": "7947",
        "membership.bind": '"127.0.0.1:7946"',
        "metrics.port": "9747",
    },
    "storage": {
        "node.id": '"storage-0"',
        "node.data_dir": '"data/storage-0"',
        "node.seeds": '["127.0.0.1:7947"]',
        "node.link_port": "7948",
        "membership.bind": '"127.0.0.1:0"',
        "membership.seeds": '["127.0.0.1:7946"]',
        "storage.retained_payload_max": "65536",
        "metrics.port": "9748",
    },
}
SHIPPED[BALANCE] = {
    "node.id": '"gateway"',
    "node.data_dir": '"data/balance"',
    "node.seeds": '["127.0.0.1:7947"]',
    "membership.bind": '"127.0.0.1:0"',
    "membership.seeds": '["127.0.0.1:7946"]',
    "metrics.port": "9746",
}
SHIPPED[ADMIN] = {
    "node.id": '"admin"',
    "node.data_dir": '"data/admin"',
    "node.seeds": '["127.0.0.1:7947"]',
    "metrics.port": "9745",
}
# Settings of section node that a process without incoming links and requests does not use.
LINKS = ("link_bind", "link_port", "advertise", "weight")
OF_NODES = {
    BALANCE: ("audit_file", "audit_room_bytes_min", "audit_file_bytes_max", *LINKS),
    ADMIN: (*LINKS, "zone"),
}
CERTIFICATES = {"certificate": "{tier}-0.pem", "key": "{tier}-0.key", "authority": "ca.pem"}

LISTENERS = """
# Listeners: one table each; the name is the label in metrics and logs. Keys and defaults: docs/settings.md.

[edge.listeners.tls]
bind = "0.0.0.0"
port = 8883
tls = true
certificate = "data/clients/edge-0.pem"
key = "data/clients/edge-0.key"
# A client certificate is verified when one is presented; require it with require_client_certificate = true.
# Clients need their own authority: with the nodes' authority the start fails.
client_ca = "data/clients/ca.pem"
backlog = 512
accept_rate_max = 200.0
accept_rate_address_max = 50.0
subscribe_rate_max = 500.0
sessions_user_max = 10000
retained_user_max = 100000
retained_bytes_user_max = 268435456
roles_file = "conf/roles.toml"
authenticated_roles = ["device"]

# Plaintext and anonymous, therefore on loopback only; anonymous clients have no permissions without a role.
[edge.listeners.local]
bind = "127.0.0.1"
port = 1883
tls = false
allow_anonymous = true
roles_file = "conf/roles.toml"
# anonymous_roles = ["device"]

# [edge.listeners.ws]
# bind = "0.0.0.0"
# port = 8084
# protocol = "ws"
# tls = true
# certificate = "data/clients/edge-0.pem"
# key = "data/clients/edge-0.key"
# backlog = 512
# accept_rate_max = 200.0
# accept_rate_address_max = 50.0
# subscribe_rate_max = 500.0
# sessions_user_max = 10000
# retained_user_max = 100000
# retained_bytes_user_max = 268435456
# roles_file = "conf/roles.toml"
# authenticated_roles = ["device"]
"""


BALANCED = """
# Listeners: one table each; the name is that of the edges' listener. Keys and defaults: docs/settings.md.

[balance.listeners.tls]
bind = "0.0.0.0"
port = 8883

# Plaintext: the balancer reads CONNECT, so policy = "sticky" uses client IDs and MQTT 5 clients can be redirected.
# [balance.listeners.local]
# bind = "127.0.0.1"
# port = 1883
# opaque = false
"""


def documents() -> dict[Path, str]:
    """Return all generated files with their contents."""
    rooms = {**ROOMS, "membership": membership_model()}
    files: dict[Path, str] = {
        ROOT / "docs" / "settings.md": _manual(rooms),
        ROOT / "docs" / "log-events.md": event_page(),
    }
    files[ROOT / "docs" / "security.md"] = insert_rights(ROOT / "docs" / "security.md")
    for tier in (*TIERS, BALANCE, ADMIN):
        files[ROOT / "conf" / f"{tier}.toml"] = _toml(tier, rooms)
    files[ROOT / "docs" / "monitoring" / "alerts.yml"] = alert_rules()
    files[ROOT / "docs" / "monitoring" / "alarms.md"] = alarm_table()
    files[ROOT / "conf" / "bridge.toml"] = bridge_file(_text, _default)
    files[ROOT / "conf" / "udp.toml"] = udp_file(_text, _default)
    files[ROOT / "conf" / "federate.toml"] = federate_file(_text, _default)
    return files


# -- docs/settings.md


def _manual(rooms: dict[str, type[BaseModel]]) -> str:
    parts = [
        "# Settings",
        "",
        "Generated from the models by `python -m stratamq.manual`; do not edit.",
        "",
        "Defaults < the file given with `--config` < the environment < `--set section.key=value`. In the environment a",
        "setting is `STRATAMQ_<SECTION>__<KEY>`, of a listener `STRATAMQ_EDGE__LISTENERS__<NAME>__<KEY>`. Unknown",
        "names are errors, all of them reported at once, with exit code 2.",
        "`stratamq config show --effective` shows each value with its source.",
    ]
    for name, model in rooms.items():
        parts += ["", f"## {name}", "", *_table(model)]
        if name == "edge":
            parts += ["", "## edge.listeners.<name>", "", *_table(ListenerSettings)]
        if name == BALANCE:
            parts += ["", "## balance.listeners.<name>", "", *_table(BalanceListener)]
    parts += [
        "",
        "## gateway",
        "",
        "Settings of `stratamq bridge` (conf/bridge.toml), `stratamq gateway udp` (conf/udp.toml) and",
        "`stratamq federate` (conf/federate.toml).",
        "",
        *_table(GatewaySettings),
    ]
    parts += ["", "## udp", "", "Settings of `stratamq gateway udp`.", "", *_table(UdpSettings)]
    parts += ["", "## federate", "", "Settings of `stratamq federate`.", "", *_table(FederateSettings)]
    parts += ["", "## federate.policies.<agent>", "", *_table(PolicySettings)]
    parts += ["", "## bridge.<name>", "", "Settings of all kinds.", "", *_table(BridgeSettings)]
    for kind, model in BRIDGE_KINDS.items():
        parts += ["", f'## bridge.<name>, kind = "{kind}"', "", *_table(model, BridgeSettings)]
        for table, inner in nested_tables(model):
            parts += ["", f'## bridge.<name>.{table}, kind = "{kind}"', "", *_table(inner)]
    return "\n".join(parts) + "\n"


def _table(model: type[BaseModel], less: type[BaseModel] = BaseModel) -> Iterator[str]:
    yield "| key | default | bounds | description |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name in less.model_fields or name == "kind":
            continue
        cells = (f"`{name}`", f"`{_default(field)}`", _bounds(field), _text(field))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "see text"
    return toml_literal(field.get_default(call_default_factory=True))


def _bounds(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    words = []
    for item in field.metadata:
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(item, attribute, None)
            if bound is not None:
                words.append(f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound}")
    return ", ".join(words)


# -- conf/<tier>.toml


def _toml(tier: str, rooms: dict[str, type[BaseModel]]) -> str:
    lines = [
        f"# StrataMQ {tier}: every setting with its default (commented out) or the value of this example.",
        f"# Start with: stratamq {tier} --config conf/{tier}.toml    Generated by python -m stratamq.manual.",
    ]
    shipped = dict(SHIPPED[tier])
    for key, file in CERTIFICATES.items():
        file = file.format(tier=tier).replace("balance-0", "gateway").replace("admin-0", "admin")
        shipped[f"node.{key}"] = f'"data/tls/{file}"'
    shipped["membership.key_file"] = '"data/tls/gossip.key"'
    for name in ("node", tier, *(() if tier == ADMIN else ("membership",)), "metrics", "logs"):
        lines += ["", f"[{name}]"]
        for key, field in rooms[name].model_fields.items():
            if key == "listeners" or (tier in (BALANCE, ADMIN) and name == "node" and key in OF_NODES[tier]):
                continue
            lines += ["", f"# {_text(field) or key}"]
            value = shipped.get(f"{name}.{key}")
            lines.append(f"{key} = {value}" if value is not None else f"# {key} = {_default(field)}")
        if name == "edge":
            lines += LISTENERS.rstrip("\n").split("\n")
        if name == BALANCE:
            lines += BALANCED.rstrip("\n").split("\n")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the files, or compare them with ``--check``."""
    stale = [path for path, text in documents().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m stratamq.manual")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(documents()[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
