"""``stratamq federate init``: an authority, and a folder with certificate and configuration for each agent.

Chooses names, ports and the dialling side of each link. Store the authority's key elsewhere.
"""

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

from conf.errors import ExitCode, UserError
from conf.node_settings import NAME_PATTERN
from wire.links.authority import LOOPBACK, DevelopmentAuthority

__all__ = ["make_folder"]

PORT = 10500
TIER = "federate"
CONFIGURATION = """\
# Agent {name} of federation {federation}: change federate.host to its broker. conf/federate.toml shows every setting.
# Start with: stratamq federate --config {file}
[gateway]
id = "{name}"
data_dir = "{data}"

[federate]
federation = "{federation}"
agent = "{name}"
bind = "{bind}"
port = {port}
neighbours = [{neighbours}]
authority = "{authority}"
certificate = "{certificate}"
key = "{key}"
host = ["mqtt://127.0.0.1:1883"]
host_kind = "mosquitto"

[metrics]
port = {metrics}
"""
METRICS_PORT = 9760


def make_folder(folder: Path, federation: str, agents: Sequence[str], links: Sequence[str]) -> list[Path]:
    """Create missing files and return the configurations; existing ones stay unchanged.

    Raises:
        UserError: A name or link is invalid.
    """
    places: dict[str, tuple[str, int]] = {}
    for number, text in enumerate(agents):
        name, _, place = text.partition("=")
        host, _, port = place.partition(":")
        if not re.fullmatch(NAME_PATTERN, name) or (port and not port.isdecimal()):
            raise UserError(f"--agent {text} is invalid: use NAME or NAME=HOST[:PORT]", ExitCode.USAGE)
        places[name] = (host or "127.0.0.1", int(port) if port else PORT + (0 if host else number))
    if not re.fullmatch(NAME_PATTERN, federation):
        raise UserError(f"--federation {federation} is invalid: use letters, digits, - and _", ExitCode.USAGE)
    dials: dict[str, list[str]] = {name: [] for name in places}
    for text in links:
        pair = [
            (one, text[len(one) + 1 :])
            for one in places
            if text.startswith(f"{one}-") and text[len(one) + 1 :] in places
        ]
        if not pair:
            raise UserError(f"--link {text} is invalid: use NAME-NAME of two agents", ExitCode.USAGE)
        one, other = sorted(pair[0])
        dials[one].append(other)
    authority = DevelopmentAuthority(
        folder / "tls", federation, datetime.datetime.now(datetime.UTC), f"StrataMQ federation {federation}"
    )
    made = []
    for number, (name, (host, own_port)) in enumerate(places.items()):
        hosts = LOOPBACK if host == "127.0.0.1" else (host, *LOOPBACK)
        files = authority.node(TIER, name, hosts)
        file = folder / f"{name}.toml"
        made.append(file)
        if file.exists():
            continue
        neighbours = ", ".join(f'"{places[each][0]}:{places[each][1]}"' for each in dials[name])
        file.write_text(
            CONFIGURATION.format(
                name=name,
                federation=federation,
                file=file,
                data=folder / name,
                bind="127.0.0.1" if host == "127.0.0.1" else "0.0.0.0",
                port=own_port,
                neighbours=neighbours,
                authority=files.authority,
                certificate=files.certificate,
                key=files.key,
                metrics=METRICS_PORT + number,
            )
        )
    return made
