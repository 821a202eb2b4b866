"""Conversion of ``connection`` sections of ``mosquitto.conf`` to bridge settings.

Secrets are never printed: a note names the file for each password. Source: mosquitto.conf(5) of version 2.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateways.bridges.topic_lines import parse_topic_line
from stratamq.toml_text import toml_literal

__all__ = ["ImportedBridges", "import_mosquitto"]

IGNORED = {
    "try_private": "the bridge always sets the bridge flag if the protocol supports it",
    "restart_timeout": "retry delays are 0.1 to 30 s, with jitter",
    "bridge_attempt_unsubscribe": "filters removed from the file are not unsubscribed",
    "local_clientid": "client_id is the client ID on the cluster",
}
START = {"automatic": "automatic", "once": "once", "lazy": "lazy"}


@dataclass
class _Section:
    name: str
    addresses: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    bridge: dict[str, object] = field(default_factory=dict)
    remote: dict[str, object] = field(default_factory=dict)
    secure: bool = False


@dataclass
class ImportedBridges:
    """Result of a conversion: TOML, and notes on unsupported options with their lines."""

    toml: str = ""
    notes: list[str] = field(default_factory=list)


def import_mosquitto(text: str, cluster: str) -> ImportedBridges:
    """Convert the ``connection`` sections of a file.

    Args:
        text: Content of mosquitto.conf.
        cluster: Address of an edge, which replaces Mosquitto's local side.
    """
    found, sections = ImportedBridges(), list[_Section]()
    for number, line in enumerate(text.splitlines(), 1):
        option, _, value = line.strip().partition(" ")
        value = value.strip()
        if not option or option.startswith("#"):
            continue
        if option == "connection":
            sections.append(_Section(value))
        elif sections:
            note = _take(sections[-1], option, value)
            if note:
                found.notes.append(f"line {number}: {option}: {note}")
    parts = [_toml(section, cluster, found.notes) for section in sections]
    if not sections:
        found.notes.append("no `connection` section found")
    found.toml = "\n".join(parts)
    return found


def _take(section: _Section, option: str, value: str) -> str:
    """Convert one option; return the reason if it is unsupported, else ""."""
    remote, bridge = section.remote, section.bridge
    match option:
        case "address" | "addresses":
            section.addresses += value.split()
        case "topic":
            try:
                parse_topic_line(value)
            except ValueError as error:
                return str(error)
            section.topics.append(value)
        case "remote_clientid" | "clientid":
            remote["client_id"] = value
        case "remote_username" | "username":
            remote["username"] = value
        case "remote_password" | "password":
            remote["password_file"] = f"secrets/{section.name}"
            return f"write the password into secrets/{section.name}, mode 0600"
        case "cleansession":
            remote["clean_start"] = value == "true"
        case "local_cleansession":
            bridge["clean_start"] = value == "true"
        case "keepalive_interval" if value.isdecimal():
            remote["keep_alive_s"] = max(5, int(value))
        case "notifications":
            bridge["notifications"] = value == "true"
        case "start_type" if value in START:
            bridge["start"] = START[value]
        case "threshold" if value.isdecimal():
            bridge["lazy_messages"] = int(value)
        case "idle_timeout" if value.isdecimal():
            bridge["lazy_idle_s"] = float(value)
        case "bridge_protocol_version":
            remote["protocol"] = "5" if value == "mqttv50" else "3.1.1"
        case "bridge_outgoing_retain":
            bridge["retain"] = "as_published" if value == "true" else "never"
        case "bridge_max_packet_size" if value.isdecimal() and int(value) >= 1024:
            bridge["packet_bytes_max"] = int(value)
        case "bridge_cafile":
            remote["authority"], section.secure = value, True
        case "bridge_certfile":
            remote["certificate"], section.secure = value, True
        case "bridge_keyfile":
            remote["key"], section.secure = value, True
        case _:
            return IGNORED.get(option, "is not supported")
    return ""


def _toml(section: _Section, cluster: str, notes: list[str]) -> str:
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in section.name)
    scheme = "mqtts" if section.secure else "mqtt"
    addresses = [each if "://" in each else f"{scheme}://{each}" for each in section.addresses]
    if not addresses:
        notes.append(f"connection {section.name}: no address")
    if not section.topics:
        notes.append(f"connection {section.name}: no topic: the bridge would forward no messages")
    topics = tuple(section.topics)
    bridge = {"kind": "mqtt", "cluster": (cluster,), "client_id": name, "topics": topics} | section.bridge
    remote = {"addresses": tuple(addresses), "protocol": "3.1.1"} | section.remote  # Mosquitto's default
    lines = [f"[bridge.{_key(name)}]", *(f"{key} = {toml_literal(value)}" for key, value in bridge.items()), ""]
    lines += [f"[bridge.{_key(name)}.remote]", *(f"{key} = {toml_literal(value)}" for key, value in remote.items()), ""]
    return "\n".join(lines)


def _key(name: str) -> str:
    return f'"{name}"' if "." in name else name
