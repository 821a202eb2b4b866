"""Settings: precedence of sources, and one line for every mistake, all at once."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from conf.admin_settings import AdminSettings
from conf.errors import ExitCode, UserError
from conf.settings import EdgeConfig, RouterConfig, StorageConfig, load


def edge(
    tmp_path: Path, toml: str = "", environment: dict[str, str] | None = None, flags: tuple[str, ...] = ()
) -> EdgeConfig:
    file = tmp_path / "edge.toml"
    file.write_bytes(toml.encode(errors="surrogateescape"))
    config = load("edge", file=file, environment=environment or {}, flags=flags)
    assert isinstance(config, EdgeConfig)
    return config


def mistakes(
    tmp_path: Path, toml: str = "", environment: dict[str, str] | None = None, flags: tuple[str, ...] = ()
) -> list[str]:
    with pytest.raises(UserError) as caught:
        edge(tmp_path, toml, environment, flags)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message.replace(str(tmp_path / "edge.toml"), "FILE").split("\n")


def test_a_wrong_host_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    """The error contained only the pattern of the check."""
    (line,) = mistakes(tmp_path, '[metrics]\nhosts = ["scrape.example", "http://a.example:80"]\n')
    assert line == (
        "FILE:2: metrics.hosts.1 = 'http://a.example:80': must be a host name or an address without scheme and port, "
        "such as broker.example or 2001:db8::1, *.parent, or *, of at most 253 characters"
    )
    with pytest.raises(ValidationError, match="must be a host name or an address"):
        AdminSettings(hosts=("a b",))
    assert AdminSettings(hosts=("*", "*.a.example", "::1", "10.0.0.1")).hosts[1] == "*.a.example"


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    """Defaults < file < environment < flags, key by key."""
    toml = "[edge]\nreceive_maximum = 1\ntopic_levels_max = 2\nsys_interval_s = 3\n"
    environment = {"STRATAMQ_EDGE__TOPIC_LEVELS_MAX": "20", "STRATAMQ_EDGE__SYS_INTERVAL_S": "30", "PATH": "x"}
    config = edge(tmp_path, toml, environment, ("edge.sys_interval_s=300",))
    values = (config.edge.receive_maximum, config.edge.topic_levels_max, config.edge.sys_interval_s)
    assert values == (1, 20, 300)
    assert config.edge.topic_alias_maximum == 10
    assert config.sources["edge.receive_maximum"].endswith("edge.toml")
    assert config.sources["edge.topic_levels_max"] == "environment STRATAMQ_EDGE__TOPIC_LEVELS_MAX"
    assert config.sources["edge.sys_interval_s"] == "--set edge.sys_interval_s"
    assert "edge.topic_alias_maximum" not in config.sources


def test_listeners_are_addressable_by_name(tmp_path: Path) -> None:
    """`[edge.listeners.plain]` and `[[edge.listeners]]` mean the same."""
    for head in ("[edge.listeners.plain]", "[[edge.listeners]]\nname = 'plain'"):
        toml = f"{head}\nport = 1883\ntls = false\n"
        config = edge(tmp_path, toml, {"STRATAMQ_EDGE__LISTENERS__PLAIN__PORT": "1884"})
        (listener,) = config.edge.listeners
        assert (listener.name, listener.port, listener.allow_anonymous) == ("plain", 1884, False)


def test_lists_from_text(tmp_path: Path) -> None:
    """`a,b` and TOML both give a list."""
    for text in ("a:1,b:2", '["a:1", "b:2"]'):
        assert edge(tmp_path, flags=(f"node.seeds={text}",)).node.seeds == ("a:1", "b:2")


def test_tiers_have_their_own_rooms_and_defaults() -> None:
    """The link port and the data folder depend on the tier."""
    router = load("router", environment={})
    storage = load("storage", environment={})
    assert isinstance(router, RouterConfig)
    assert isinstance(storage, StorageConfig)
    assert (router.node.link_port, storage.node.link_port) == (7947, 7948)
    assert storage.node.data_dir == Path("data/storage")
    assert router.node.id.startswith("router-")


def test_rooms_of_other_tiers_are_shared_through_the_environment(tmp_path: Path) -> None:
    """One environment serves all tiers: names are checked, values only by their tier."""
    edge(tmp_path, environment={"STRATAMQ_STORAGE__QUEUE_MESSAGES_MAX": "5"})
    assert mistakes(tmp_path, environment={"STRATAMQ_STORAGE__QUEUE_MESSAGE_MAX": "5"}) == [
        "environment STRATAMQ_STORAGE__QUEUE_MESSAGE_MAX: unknown key storage.queue_message_max "
        "(did you mean storage.queue_messages_max?)"
    ]


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    """One line each: source, key, reason, suggestion."""
    toml = """
[edge]
kep_alive = 60
receive_maximum = 0
[edge.listeners.tls]
port = 70000
tls = false
allow_anonymus = true
[node]
cluster = "a b"
[edgee]
"""
    environment = {"STRATAMQ_EDGE__TOPIC_LEVELS": "3", "STRATAMQ_ROTER": "x", "STRATAMQ_PURE": "1"}
    lines = mistakes(tmp_path, toml, environment, ("metrics.port=http", "nonsense", "lgs.level=info"))
    assert sorted(lines) == sorted(
        [
            "FILE:3: unknown key edge.kep_alive (did you mean edge.keep_alive_max_s?)",
            "FILE:4: edge.receive_maximum = 0: must be greater than or equal to 1",
            "FILE:6: edge.listeners.tls.port = 70000: must be less than or equal to 65535",
            "FILE:8: unknown key edge.listeners.tls.allow_anonymus (did you mean edge.listeners.tls.allow_anonymous?)",
            "FILE:10: node.cluster = 'a b': string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'",
            "FILE:11: unknown room edgee (did you mean edge?)",
            "environment STRATAMQ_EDGE__TOPIC_LEVELS: "
            "unknown key edge.topic_levels (did you mean edge.topic_levels_max?)",
            "environment: unknown STRATAMQ_ROTER (did you mean STRATAMQ_ROUTER?)",
            "--set metrics.port: metrics.port = 'http': must be a valid integer, unable to parse string as an integer",
            "--set nonsense: expected room.key=value",
            "--set lgs.level=info: unknown room lgs (did you mean logs?)",
        ]
    )


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("[edge.listeners.a]\nport = 1\n", "FILE:1: edge.listeners.a: tls needs certificate and key (or tls = false)"),
        ("[storage]\nstores = 1\n", "FILE:1: unknown room storage"),
        ("edge = 1\n", "FILE:1: edge is a section: write [edge]"),
        ("[edge\n", "FILE: not TOML: Expected ']' at the end of a table declaration (at line 1, column 6)"),
        ("[edge]\rsys_interval_s = 1\n", "FILE: not TOML: Expected newline or end of document after a statement"),
        ("[edge]\n# \udcff\n", "FILE:2: not TOML: no UTF-8"),
        ("[edge.listeners.a]\nname = 'b'\n[edge.listeners.b]\n", "FILE:1: edge.listeners: two have the name 'b'"),
        ("[edge.listeners.a]\n", "FILE:1: edge.listeners.a.port is missing"),
        ("[[edge.listeners]]\nname = []\nport = 1\ntls = false\n", "FILE:2: edge.listeners.0.name = []: must be a "),
        ("[edge]\noutput_buffer_bytes_low = 2000000\n", "FILE:1: edge: output_buffer_bytes_low must be below "),
    ],
)
def test_mistakes_of_files(tmp_path: Path, toml: str, line: str) -> None:
    """A file belongs to one tier; other sections are refused, with their line."""
    assert [found[: len(line)] for found in mistakes(tmp_path, toml)] == [line]


def test_doubled_names_are_refused(tmp_path: Path) -> None:
    """The first of two listeners of one name would be lost silently."""
    toml = "".join(f"[[edge.listeners]]\nname = 'a'\nport = {port}\ntls = false\n" for port in (1, 2))
    assert mistakes(tmp_path, toml) == ["FILE:5: edge.listeners has 'a' twice; give each its own name"]


def test_missing_file(tmp_path: Path) -> None:
    """One line, exit code 2."""
    with pytest.raises(UserError, match=r"none\.toml: No such file or directory"):
        load("edge", file=tmp_path / "none.toml", environment={})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("router.min_in_sync=4",), "min_in_sync cannot be more than replicas"),
        (("router.members=a@h:1,b@h:2",), "1, 3 or 5 routers"),
        (("router.members=a-h:1",), "is not id@host:port"),
        (("router.heartbeat_s=0.2",), "at most half of election_timeout_s"),
    ],
)
def test_router_settings_are_consistent(flags: tuple[str, ...], words: str) -> None:
    """Rules between keys are reported like rules of one."""
    with pytest.raises(UserError, match=words):
        load("router", environment={}, flags=flags)


def test_membership_is_handed_in() -> None:
    """Its model is in a package above this one."""

    class Model(BaseModel, frozen=True, extra="forbid"):
        profile: str = "lan"

    config = load("edge", environment={}, flags=("membership.profile=local",), membership=Model)
    assert config.membership == Model(profile="local")
    with pytest.raises(UserError, match="unknown room membership"):
        load("edge", environment={}, flags=("membership.profile=local",))


def bounded(limit: str, of_edge: str = "") -> str:
    """Return an edge's file with a limit of a listener, and one of all of them."""
    return f"[edge]\n{of_edge}\n[edge.listeners.plain]\nport = 1883\ntls = false\n{limit}\n"


@pytest.mark.parametrize(
    ("limit", "of_edge", "most"),
    [
        ("packet_bytes_max = 2000000", "", "edge.maximum_packet_size = 1114112"),
        ("topic_levels_max = 33", "", "edge.topic_levels_max = 32"),
        ("keep_alive_max_s = 3601", "", "edge.keep_alive_max_s = 3600"),
        ("filters_max = 1001", "", "edge.filters_per_session_max = 1000"),
        ("publish_rate_max = 51.0", "publish_rate_max = 50.0", "edge.publish_rate_max = 50.0"),
        ("inflight_max = 65", "", "edge.receive_maximum and edge.outbound_window_max, the larger of which is 64"),
    ],
)
def test_listener_limit_above_edge_is_refused(tmp_path: Path, limit: str, of_edge: str, most: str) -> None:
    """A wider one than its edge's has no effect: what, where, and what to do, in one line."""
    (line,) = [line for line in mistakes(tmp_path, bounded(limit, of_edge)) if "listeners" in line]
    assert f"listeners.plain.{limit} has no effect above" in line and most in line and "lower this one" in line


def test_listener_limit_up_to_edge_is_accepted(tmp_path: Path) -> None:
    """As large as its edge's, or if the edge has none."""
    for limit in ("packet_bytes_max = 1114112", "inflight_max = 64", "publish_rate_max = 100.0"):
        assert edge(tmp_path, bounded(limit))
    assert edge(tmp_path, bounded("packet_bytes_max = 2000000", "maximum_packet_size = 2000000"))
