"""Generated files are current and valid."""

import datetime
from pathlib import Path

import pytest
from annotated_types import Le

from conf.edge_settings import ListenerSettings
from conf.router_settings import RouterSettings
from conf.settings import TIERS, EdgeConfig, NodeConfig, StorageConfig
from stratamq.init_folder import ClusterFolder
from stratamq.manual import documents
from stratamq.packages import load_config
from wire.links.authority import LOOPBACK
from wire.messages.ranges import PARTITIONS_MAX

ROOT = Path(__file__).parent.parent.parent


def test_generated_files_are_up_to_date() -> None:
    """After a change of a model: python -m stratamq.manual."""
    for path, text in documents().items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: run python -m stratamq.manual"


@pytest.mark.parametrize("tier", TIERS)
def test_shipped_files_are_valid(tier: str) -> None:
    """They load, and every commented default is valid when enabled."""
    file = ROOT / "conf" / f"{tier}.toml"
    load_config(tier, file, (), {})


def test_anonymous_clients_only_on_loopback() -> None:
    """Deny is the default: the shipped edge.toml accepts anonymous clients only on 127.0.0.1."""
    config = load_config("edge", ROOT / "conf" / "edge.toml", (), {})
    assert isinstance(config, EdgeConfig)
    listeners = {listener.name: listener for listener in config.edge.listeners}
    assert set(listeners) == {"tls", "local"}
    assert listeners["tls"].tls and listeners["tls"].port == 8883 and not listeners["tls"].allow_anonymous
    assert listeners["local"].allow_anonymous and listeners["local"].bind == "127.0.0.1"
    assert listeners["tls"].client_ca not in (None, config.node.authority)  # clients have their own authority
    assert config.edge.connect_rate_max > 0
    assert config.edge.user_property_bytes_max == 8 * 1024


PROTECTING = {  # against strangers: the listener of external clients, its edge, and storage
    "listener": {
        "backlog": 512,
        "accept_rate_max": 200,
        "accept_rate_address_max": 50,
        "sessions_user_max": 10_000,
        "retained_user_max": 100_000,
        "retained_bytes_user_max": 256 << 20,
    },
    "edge": {
        "connect_timeout_s": 10,
        "connect_packet_timeout_s": 5,
        "packet_timeout_s": 30,
        "packet_rate_min": 64,
        "connect_rate_max": 200,
        "keep_alive_max_s": 1_200,
        "topic_bytes_max": 1_024,
        "topic_levels_max": 32,
        "filters_per_session_max": 1_000,
        "filters_per_packet_max": 100,
        "retained_rate_max": 1_000,
        "receive_maximum": 20,
        "outbound_window_max": 64,
        "topic_alias_maximum": 10,
        "session_expiry_max_s": 7 * 86_400,
        "session_rate": 20,
        "will_rate_max": 100,
        "takeovers_max": 5,
        "flapping_ends_max": 15,
        "failed_logins_max": 10,
        "user_properties_max": 64,
        "user_property_bytes_max": 8_192,
        "output_buffer_bytes_max": 1 << 20,
        "share_join_rate_max": 100,
    },
    "storage": {
        "retained_payload_max": 65_536,
        "retained_bytes_max": 256 << 20,
        "queue_messages_max": 10_000,
        "queue_bytes_max": 64 << 20,
        "filters_per_session_max": 1_000,
    },
}


def _protecting(edge: NodeConfig, storage: NodeConfig) -> dict[str, dict[str, float]]:
    """Return the settings from both files."""
    assert isinstance(edge, EdgeConfig) and isinstance(storage, StorageConfig)
    (listener,) = (one for one in edge.edge.listeners if one.bind not in LOOPBACK or len(edge.edge.listeners) == 1)
    rooms = {"listener": listener, "edge": edge.edge, "storage": storage.storage}
    return {room: {name: getattr(rooms[room], name) for name in names} for room, names in PROTECTING.items()}


def test_bounds_that_protect_from_strangers_are_on(tmp_path: Path) -> None:
    """In the shipped files, and in those of ``stratamq init``, each with its value."""
    shipped = [load_config(tier, ROOT / "conf" / f"{tier}.toml", (), {}) for tier in ("edge", "storage")]
    assert _protecting(*shipped) == PROTECTING
    folder = tmp_path / "cluster"
    ClusterFolder(folder, datetime.datetime.now(datetime.UTC)).create("stratamq", ())
    made = [load_config(tier, folder / f"{tier}-0.toml", (), {}) for tier in ("edge", "storage")]
    assert _protecting(*made) == PROTECTING


def test_listener_with_port_only_is_restrictive() -> None:
    """With a port only: on loopback, with TLS, and without anonymous clients."""
    listener = ListenerSettings(name="x", port=0, certificate=Path("c.pem"), key=Path("k.pem"))
    assert (listener.bind, listener.tls, listener.allow_anonymous) == ("127.0.0.1", True, False)
    assert not listener.proxy_identity and not listener.anonymous_roles


def test_every_setting_is_described() -> None:
    """Unit, meaning, and the effect of raising it."""
    for path, text in documents().items():
        if path.suffix == ".md":
            assert "|  |\n" not in text


def test_partitions_maximum_matches_wire_format() -> None:
    """A larger setting would make a cluster that messages cannot describe."""
    bounds = RouterSettings.model_fields["partitions"].metadata
    assert [bound.le for bound in bounds if isinstance(bound, Le)] == [PARTITIONS_MAX]
