"""What is generated from the models is current and valid."""

from pathlib import Path

import pytest
from annotated_types import Le

from conf.edge_settings import ListenerSettings
from conf.router_settings import RouterSettings
from conf.settings import TIERS, EdgeConfig
from stratamq.manual import documents
from stratamq.rooms import load_config
from wire.messages.ranges import PARTITIONS_MAX

ROOT = Path(__file__).parent.parent.parent


def test_generated_files_are_up_to_date() -> None:
    """After a change of a model: python -m stratamq.manual."""
    for path, text in documents().items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: run python -m stratamq.manual"


@pytest.mark.parametrize("tier", TIERS)
def test_shipped_files_are_valid(tier: str) -> None:
    """They load, and every default that is commented out is valid when it is not."""
    file = ROOT / "conf" / f"{tier}.toml"
    load_config(tier, file, (), {})


def test_anonymous_clients_only_on_loopback() -> None:
    """Deny is the default: the shipped edge.toml takes anonymous clients on 127.0.0.1 and nowhere else.

    NIST: protect.
    """
    config = load_config("edge", ROOT / "conf" / "edge.toml", (), {})
    assert isinstance(config, EdgeConfig)
    listeners = {listener.name: listener for listener in config.edge.listeners}
    assert set(listeners) == {"tls", "local"}
    assert listeners["tls"].tls and listeners["tls"].port == 8883 and not listeners["tls"].allow_anonymous
    assert listeners["local"].allow_anonymous and listeners["local"].bind == "127.0.0.1"
    assert listeners["tls"].client_ca not in (None, config.node.authority)  # clients have an authority of their own
    assert config.edge.connect_rate_max > 0
    assert config.edge.user_property_bytes_max == 8 * 1024


def test_a_listener_that_says_nothing_is_closed() -> None:
    """NIST: protect. With a port alone: on loopback, with TLS, and nobody comes in without proof."""
    listener = ListenerSettings(name="x", port=0, certificate=Path("c.pem"), key=Path("k.pem"))
    assert (listener.bind, listener.tls, listener.allow_anonymous) == ("127.0.0.1", True, False)
    assert not listener.proxy_identity and not listener.anonymous_roles


def test_every_setting_is_described() -> None:
    """Unit, meaning, and what moves when it is raised."""
    for path, text in documents().items():
        if path.suffix == ".md":
            assert "|  |\n" not in text


def test_the_most_partitions_are_what_the_wire_can_name() -> None:
    """A setting above it would make a cluster that no message can speak of."""
    bounds = RouterSettings.model_fields["partitions"].metadata
    assert [bound.le for bound in bounds if isinstance(bound, Le)] == [PARTITIONS_MAX]
