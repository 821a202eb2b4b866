"""Configuration errors: one line each, exit code 2, and no bridge is started."""

from pathlib import Path

import pytest
import trio

from conf.bridge_config import load_bridges
from conf.errors import UserError
from gateways.bridges.kinds import build_all

GOOD = """
[bridge.one]
kind = "mqtt"
cluster = ["mqtt://127.0.0.1:1883"]
client_id = "one"
topics = ["a/# both 1"]
[bridge.one.remote]
addresses = ["mqtt://127.0.0.1:1884"]
"""
SECOND = GOOD.replace("bridge.one", "bridge.two").replace('"one"', '"two"')

ERRORS = [
    (GOOD.replace('"mqtt"\n', '"mqtts"\n'), "bridge.one: kind 'mqtts' is none of "),
    (GOOD.replace('kind = "mqtt"\n', ""), "bridge.one: kind is missing"),
    (GOOD.replace("client_id", "clientid"), "unknown key bridge.one.clientid (did you mean bridge.one.client_id?)"),
    (
        GOOD.partition("topics")[0].replace('"mqtt"\n', '"kafka-source"\nbrokers = ["b:1"]\ngroup_id = "g"\n'),
        "unknown key bridge.one.group_id (did you mean bridge.one.consumer_group?)",
    ),
    (GOOD.replace('"a/# both 1"', '"a# both 1"'), "bridge.one.topics: 'a# both 1': 'a#' is not a valid filter"),
    (GOOD.replace('"a/# both 1"', ""), "bridge.one.topics"),
    (
        GOOD.replace("mqtt://127.0.0.1:1884", "http://x"),
        "bridge.one.remote.addresses: 'http://x': the scheme is",
    ),
    (GOOD.replace("mqtt://127.0.0.1:1884", "mqtt://u:p@x"), "an address must not contain user or password"),
    (GOOD + 'password_file = "nowhere"\n', "bridge.one.remote: secret nowhere: No such file"),
    (
        GOOD + SECOND.replace('"two"', '"one"'),
        "client ID 'one' at mqtt://127.0.0.1:1883 is also used by bridge.one",
    ),
    (GOOD + SECOND, "bridge.two and bridge.one form a loop: 'a/#'"),
    (GOOD.replace("client_id", 'start = "lazy"\nclient_id'), 'bridge.one.start = "lazy" is for lines out alone'),
    ("", "no bridge: write [bridge.<name>]"),
    ("[bridges.x]\n", "unknown room bridges"),
    ("[bridge\n", "not TOML"),
    ("[bridge.'a b']\nkind = 'mqtt'\n", "bridge 'a b': a name consists of letters"),
]


def build(path: Path) -> None:
    config = load_bridges(path, environment={})

    async def make() -> None:
        build_all(config)

    trio.run(make)


@pytest.mark.parametrize(("text", "line"), ERRORS)
def test_build_all_invalid_configuration_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        build(file)
    assert caught.value.exit_code == 2 and line in caught.value.message


def test_build_all_readable_secret_is_refused(tmp_path: Path) -> None:
    """No error shows a secret."""
    secret = tmp_path / "password"
    secret.write_text("hunter2")
    secret.chmod(0o644)
    file = tmp_path / "bridge.toml"
    file.write_text(GOOD + f'username = "u"\npassword_file = "{secret}"\n')
    with pytest.raises(UserError, match="open to group or others") as caught:
        build(file)
    assert "hunter2" not in caught.value.message
    secret.chmod(0o600)
    build(file)
