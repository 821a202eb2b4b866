"""Bridges of a mosquitto.conf become ours, without their passwords; what cannot be converted has a line."""

from pathlib import Path

import pytest

from conf.bridge_config import load_bridges
from conf.bridge_settings import MqttBridge
from stratamq.cli.main import main

CONF = """\
# a broker
listener 1883
connection up.link
address hq.example:8883 hq2.example:8883
topic sensors/# out 1 site/ hq/
topic # both 2
topic broken+ out
remote_clientid plant-7
remote_username plant
remote_password hunter2
bridge_cafile /etc/ca.pem
cleansession false
keepalive_interval 60
notifications false
bridge_protocol_version mqttv50
bridge_psk abcdef
start_type automatic
connection plain
address 10.0.0.1
topic a/b in 0
"""


def test_a_file_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(CONF)
    assert main(["bridge", "import", str(conf), "--cluster", "mqtt://127.0.0.1:1883"]) == 3
    shown = capsys.readouterr()
    assert "hunter2" not in shown.out + shown.err and "abcdef" not in shown.out + shown.err
    for note in ("line 7: topic: ", "line 10: remote_password: write the password into", "line 16: bridge_psk: is not"):
        assert note in shown.err
    assert shown.err.count("\n") == 3
    file = tmp_path / "bridge.toml"
    file.write_text(shown.out)
    bridges = load_bridges(file, environment={}).bridges
    up, plain = bridges["up.link"], bridges["plain"]
    assert isinstance(up, MqttBridge) and isinstance(plain, MqttBridge)
    assert up.topics == ("sensors/# out 1 site/ hq/", "# both 2") and not up.notifications
    assert up.remote.addresses == ("mqtts://hq.example:8883", "mqtts://hq2.example:8883")
    assert (up.remote.client_id, up.remote.username, up.remote.keep_alive_s) == ("plant-7", "plant", 60)
    assert up.remote.protocol == "5" and plain.remote.protocol == "3.1.1"
    assert plain.remote.addresses == ("mqtt://10.0.0.1",)


def test_a_file_without_bridges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = tmp_path / "mosquitto.conf"
    conf.write_text("listener 1883\n")
    assert main(["bridge", "import", str(conf)]) == 1
    assert "no `connection` section" in capsys.readouterr().err
    assert main(["bridge", "import", str(tmp_path / "nowhere")]) == 2
