"""User information, query and fragment of a URL are masked in every text; a setting may name a file."""

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from admin.bundle.masking import Hider
from conf.bridge_settings import BRIDGE_KINDS, Webhook
from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from conf.events import say
from conf.federate_settings import FederateSettings
from conf.logs import configure_logs, kept_lines
from conf.node_settings import LogSettings
from conf.secret_names import setting_text, shown_value
from conf.settings import ROOMS, load
from conf.sources import load_rooms
from conf.udp_settings import UdpSettings
from conf.url_settings import HttpUrl, KeySetUrl, ProtectedUrl, Url
from conf.urls import mask_urls, shown_url
from gateways.addresses import parse_address
from stratamq.cli.tiers import tell_ready
from tests.packages import PACKAGES
from wire.node.reload import changed_settings

ROOT = Path(__file__).parents[2]
MODELS: list[type[BaseModel]] = [
    *(ROOMS[name] for name in ROOMS),
    *BRIDGE_KINDS.values(),
    FederateSettings,
    UdpSettings,
]
URLS = {  # every setting that names an HTTP server
    "edge.listeners.ocsp_url": HttpUrl,
    "edge.listeners.token_jwks_url": KeySetUrl,
    "edge.listeners.http_url": ProtectedUrl,
    "admin.otlp_endpoint": HttpUrl,
    "Webhook.url": HttpUrl,
    "FederateSettings.api": HttpUrl,
}
# settings whose text names a scheme, and that are not URLs: names of certificates, and addresses of brokers,
OTHERS = {
    # which ``parse_address`` accepts without user information, query and fragment
    *("node.certificate", "admin.client_ca", "FederateSettings.certificate", "edge.listeners.origins"),
    *("FederateSettings.host", "UdpSettings.cluster", "remote.addresses"),
    *(f"{model.__name__}.cluster" for model in BRIDGE_KINDS.values()),
}
DIALS = {  # uses of the whole URL: to connect, to split it, or to write it into a file of settings
    "admin/otlp.py": 2,
    "edge/login/callout_service.py": 1,
    "edge/login/key_refresh_service.py": 1,
    "gateways/bridges/webhook.py": 2,
    "gateways/federation/interest/cluster_list.py": 1,
    "stratamq/toml_text.py": 1,
}
SECRET = st.text("abcXYZ019-._~%!$&'()*+,;=\"\\{}|^`", min_size=8, max_size=24).map(lambda text: f"Zq7{text}9Zq")
PARTS = st.sampled_from(["user", "password", "query", "fragment"])


def fields(model: type[BaseModel], name: str) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a model, and of its tables."""
    for key, field in model.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
        tables = [one for one in inner if issubclass(one, BaseModel)]
        for table in tables:
            yield from fields(table, f"{name}.{key}" if name in ROOMS else key)
        if not tables:
            yield f"{name}.{key}", field


def all_fields() -> dict[str, Any]:
    names = {id(ROOMS[name]): name for name in ROOMS}
    return {key: field for model in MODELS for key, field in fields(model, names.get(id(model), model.__name__))}


def test_every_setting_with_a_url_is_of_the_type() -> None:
    found = all_fields()
    typed = {name: field.annotation for name, field in found.items() if issubclass_of_url(field.annotation)}
    assert typed == URLS
    named = {
        name
        for name, field in found.items()
        if "://" in (field.description or "") or re.search(r"\burl\b|_url$", name + (field.description or ""), re.I)
    }
    assert named - URLS.keys() - OTHERS == set(), "a setting that may hold a URL has a type of conf/url_settings.py"
    assert named | {"edge.listeners.origins"} >= OTHERS


def issubclass_of_url(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Url)


def test_whole_url_is_used_only_to_connect() -> None:
    """``plain`` and ``urlsplit`` elsewhere would be a second way for a URL to become text."""
    found: dict[str, int] = {}
    for room in PACKAGES:
        for path in (ROOT / room).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name == "conf/url_settings.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr == "plain":
                    found[name] = found.get(name, 0) + 1
    assert found == DIALS


def test_request_exceptions_are_masked() -> None:
    """Modules that make requests mask the library's text: it may repeat the URL."""
    for name in DIALS:
        text = (ROOT / name).read_text()
        if "httpx" in text:
            assert not re.search(r"(?<!mask_urls\()str\(error\)|__name__\}: \{error\}", text), name


def url_with(secret: str, part: str, path: str = "/a/b") -> str:
    host = "auth.example:8443"
    safe = re.sub(r"[/?#@\[\]:%\"\\{}|^`]", "", secret)
    if part == "user":
        return f"https://{safe}@{host}{path}"
    if part == "password":
        return f"https://ann:{safe}@{host}{path}"
    return f"https://{host}{path}{'?key=' if part == 'query' else '#'}{secret}"


@given(SECRET, PARTS)
def test_a_secret_of_a_url_is_in_no_text(secret: str, part: str) -> None:
    url = url_with(secret, part)
    for shown in (shown_url(url), mask_urls(url), mask_urls(f'cannot ask "{url}": refused')):
        assert "Zq7" not in shown and "9Zq" not in shown and "auth.example:8443/a/b" in shown


@given(SECRET, PARTS)
@example("Zq7~)+(-,c+$1$Yb=9Zq", "user")  # a password hash in it was masked first, and with it the end of the URL
def test_a_secret_of_a_setting_is_in_no_log_answer_or_bundle(secret: str, part: str) -> None:
    """Each URL setting, accepted and refused."""
    url = url_with(secret, part)
    for name, kind in URLS.items():
        texts = []
        try:
            value = kind.parse(url)
        except ValueError as error:
            texts.append(str(error))
        else:
            assert value.plain == url and str(value).startswith("https://")
            row = {"name": name, "value": setting_text(name, value), "default": setting_text(name, kind())}
            texts += [str(value), repr(value), f"{value}", f"{value!r}", "%s" % value, json.dumps(row)]  # noqa: UP031
            texts += [str(shown_value(name, [value])), str(Hider([]).hide(row)), logged(value), repr([value])]
        texts += [str(Hider([]).hide({"message": f"POST {url} HTTP/1.1"})), logged(OSError(f"cannot reach {url}"))]
        assert not any("Zq7" in text or "9Zq" in text for text in texts)


def logged(value: object) -> str:
    """Return the written and stored log of an event with a value, and of a library's warning with its text."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logs(LogSettings(repeat_s=0), "n", stream)
        first = kept_lines().number
        say(logging.getLogger("edge.x"), "login.keys_failed", url=value, problem=f"at {value}")
        logging.getLogger("lib").warning("failed: %s", value)
        try:
            raise ValueError(f"wrong: {value}")
        except ValueError:
            say(logging.getLogger("edge.x"), "admin.request_failed", method="GET", path="/", exc_info=True)
        assert len(stream.getvalue().splitlines()) == 3
        return stream.getvalue() + str([line for line in kept_lines().lines if line.number > first])
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.mark.parametrize("wrong", ["https://ann:Zq7@h/x?k=Zq7", "auth.example/x?k=Zq7", "ftp://h/?Zq7", "ann:Zq7@h"])
@pytest.mark.parametrize(
    "flag", ["edge.listeners.a.http_url", "edge.listeners.a.ocsp_url", "admin.otlp_endpoint", "edge.listeners.a.port"]
)
def test_the_line_about_a_mistake_does_not_repeat_a_secret(wrong: str, flag: str) -> None:
    if flag.endswith("port") and "://" not in wrong:
        return  # a number is not a URL; other invalid values are shown
    tier = flag.partition(".")[0]
    with pytest.raises(UserError) as caught:
        load(tier, environment={}, flags=[f"{flag}={wrong}", "edge.listeners.a.port=0"][: 1 if "port" in flag else 2])
    assert flag in str(caught.value) and "Zq7" not in str(caught.value)


def test_a_webhook_with_a_wrong_url_is_refused_in_one_line() -> None:
    class Rooms(BaseModel):
        hook: Webhook

    with pytest.raises(UserError) as caught:
        load_rooms({"b": Rooms}, ["b"], defaults={}, file=None, environment={}, flags=["b.hook.url=http://a:Zq7@h/"])
    assert "b.hook.url = 'http://***@h/': must be http:// or https://" in str(caught.value)


@pytest.mark.parametrize("text", ["mqtt://ann:Zq7@h", "mqtt://h?k=Zq7", "mqtt://h:Zq7", "x://h#Zq7", "mqtt://[Zq7"])
def test_the_address_of_a_broker_that_is_refused_is_masked(text: str) -> None:
    with pytest.raises(ValueError, match=r"mqtt|scheme") as caught:
        parse_address(text)
    assert "Zq7" not in str(caught.value)


def test_a_change_of_a_query_alone_is_a_change() -> None:
    """Compared as a whole, and masked as text."""
    one, other = (
        load("admin", environment={}, flags=[f"admin.otlp_endpoint=https://h/?key={key}"]) for key in ("Zq7", "Zq8")
    )
    assert changed_settings(one, other) == {"admin.otlp_endpoint": ("https://h/?***", "https://h/?***")}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h", "http://h"),
        ("https://[2001:db8::1]:8443/a?b#c", "https://[2001:db8::1]:8443/a?***#***"),
        ("s3a://key:secret@bucket/store", "s3a://***@bucket/store"),
        ("https://h/path@with/at", "https://h/path@with/at"),
        ("https://user:pa/ss@h/", "https://***"),
        ("h/x?k=v", "h/x?***"),
        ("ann:word@h/x", "***@h/x"),
        ("file:/etc/hook", "file:/etc/hook"),
        ("", ""),
    ],
)
def test_shown_url_masks_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write scheme://host:port, or mqtts://, ws:// or wss://", None),
        ("a/b?c#d of topic $SYS/#", None),
        ("('https://ann:p@h/x?k=v'): bad", "('https://***@h/x?***'): bad"),
        ('{"login": "http://127.0.0.1:1/#?code=abc"}', '{"login": "http://127.0.0.1:1/#***"}'),
    ],
)
def test_mask_urls_masks_secrets(text: str, masked: str | None) -> None:
    assert mask_urls(text) == (text if masked is None else masked)


def test_a_login_code_is_printed_and_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a service is readable for viewers, and included in bundles."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure_logs(LogSettings(), "admin", stream)
        tell_ready(-1, {"admin": "http://127.0.0.1:1/", "login": "http://127.0.0.1:1/#?code=Zq7"})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert capsys.readouterr().out == "login: http://127.0.0.1:1/#?code=Zq7\n"
    assert "Zq7" not in stream.getvalue() and "http://127.0.0.1:1/#***" in stream.getvalue()


# -- files


def test_url_is_read_from_private_file(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.touch(mode=0o600)
    file.write_text("https://h:1/services/Zq7?k=Zq7\n")
    setting = HttpUrl.parse(f"file:{file}")
    assert setting and setting.may_be_https and str(setting) == f"file:{file}"
    url = setting.read("x.url")
    assert url.plain == "https://h:1/services/Zq7?k=Zq7" and str(url) == "https://h:1/***"
    assert HttpUrl("https://h/").read("x.url").plain == "https://h/"
    file.chmod(0o644)
    with pytest.raises(UserError, match=r"x\.url: secret .* open to group or others"):
        setting.read("x.url")


@pytest.mark.parametrize(
    "content", [b"", b"Zq7", b"ftp://Zq7/", b"https://a:Zq7@h/", b"\xffZq7", b"https://h/" + b"Zq7" * 999]
)
def test_a_file_without_a_url_is_refused_without_its_content(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "hook"
    file.touch(mode=0o600)
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.url: .*/hook: the content must be http") as caught:
        HttpUrl.parse(f"file:{file}").read("x.url")
    assert "Zq7" not in str(caught.value)


def test_url_file_invalid_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        HttpUrl.parse(f"file:{tmp_path}").read("x.url")
    with pytest.raises(UserError, match="No such file"):
        HttpUrl.parse(f"file:{tmp_path}/none").read("x.url")
    with pytest.raises(ValueError, match="file:PATH"):
        ListenerSettings(name="l", port=0, tls=False, http_url="file:///etc/passwd")  # type: ignore[arg-type]
