"""Rule files of listeners, at the start and at a reload."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from access.identity.principal import Principal
from access.policy.view import PolicyView
from access.rules.rules import Action, CompiledRules, Subject
from conf.edge_settings import ListenerSettings
from conf.errors import UserError
from edge import reload
from edge.reload import ListenerRuleFiles
from edge.rights.rule_files import read_rules
from edge.rights.sources import RuleBook

ROLES = '[roles.device]\npublish = ["up/#"]\n'


def listener(name: str = "tcp", **settings: Any) -> ListenerSettings:
    return ListenerSettings(name=name, port=0, tls=False, **settings)


def config(*listeners: ListenerSettings) -> Any:
    return SimpleNamespace(edge=SimpleNamespace(listeners=listeners))


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_listener_without_rules_refuses_the_start(tmp_path: Path) -> None:
    ruled = listener("b", acl_file=file(tmp_path, "acl", "topic read a\n"))
    with pytest.raises(UserError, match=r"^listener tcp: .*edge\.listeners\.tcp\.roles_file"):
        read_rules([ruled, listener()])
    book = read_rules([ruled])
    unknown = book.of("unknown")
    assert book.filters and not unknown.tiers(unknown.key(None, "c"), PolicyView())


@pytest.mark.parametrize("settings", [{"http_acl": True}, {"token_acl": True}])
def test_listener_with_credential_rules_authorizes(settings: dict[str, Any]) -> None:
    """Otherwise a claim for one topic would allow all topics."""
    book = read_rules([listener(http_url="https://auth/", **settings)])
    sources = book.of("tcp") if book is not None else None
    assert sources is not None and not sources.tiers(sources.key(None, "c"), PolicyView())


@pytest.mark.parametrize("text", ["", "# nothing\n", "[roles]\n", "topic read a\n", "\0", "\ufeff" + ROLES])
def test_invalid_file_refuses_the_start(tmp_path: Path, text: str) -> None:
    path = file(tmp_path, "roles.toml", text)
    with pytest.raises(UserError, match=r"roles\.toml"):
        ListenerRuleFiles(config(listener(roles_file=path)), lambda _: None)


def test_missing_or_world_writable_file_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "acl", "topic read a\n")
    path.chmod(0o666)
    for one in (path, tmp_path / "missing", tmp_path):
        with pytest.raises(UserError):
            read_rules([listener(acl_file=one)])


def test_allow_all_role_excludes_dollar_topics(tmp_path: Path) -> None:
    """The shipped role, for clients that have it; others have no permission."""
    shipped = Path(__file__).parents[3] / "conf" / "roles.toml"
    path = file(tmp_path, "shipped.toml", shipped.read_text())
    book = read_rules([listener(roles_file=path, authenticated_roles=("device",))])

    def may(who: Principal | None, action: Action, topic: str) -> bool:
        return CompiledRules(book.tiers(book.key("tcp", who, "c"))).decide(action, topic, Subject("c", ""))

    for action in (Action.PUBLISH, Action.RECEIVE, Action.RETAIN, Action.WILL):
        known = Principal("anna", "", "c")
        assert may(known, action, "a/b") and not may(None, action, "a/b")
        assert not may(known, action, "$SYS/a") and not may(known, action, "$a")


def test_roles_of_a_listener_must_exist(tmp_path: Path) -> None:
    path = file(tmp_path, "roles.toml", ROLES)
    with pytest.raises(UserError, match="http_superuser_role has 'boss'"):
        read_rules([listener(roles_file=path, http_url="https://auth/", http_superuser_role="boss")])
    with pytest.raises(UserError, match="anonymous_roles has 'devise'"):
        read_rules([listener(roles_file=path, anonymous_roles=("devise",))])
    with pytest.raises(ValidationError, match="needs roles_file"):
        listener(authenticated_roles=("device",))


def test_reload_applies_all_files_or_none(tmp_path: Path) -> None:
    path = file(tmp_path, "roles.toml", ROLES)
    given: list[RuleBook] = []
    asked = config(listener(roles_file=path, authenticated_roles=("device",)))
    part = ListenerRuleFiles(asked, given.append)
    part.put(part.load(asked))
    assert given == []
    path.write_text("[roles.device\n")
    with pytest.raises(UserError):
        part.load(asked)
    path.write_text(ROLES.replace("up/#", "down/#"))
    loaded = part.load(asked)
    assert part.difference(loaded)
    part.put(loaded)
    assert len(given) == 1 and part.book is given[0]
    with pytest.raises(UserError, match="no rules for its clients"):
        part.load(config(listener()))
    part.put(part.load(config(listener(roles_file=path))))
    assert len(given) == 2


def test_rule_file_changed_during_read_is_applied_by_next_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path, "roles.toml", ROLES)
    given: list[RuleBook] = []
    asked = config(listener(roles_file=path, authenticated_roles=("device",)))
    part = ListenerRuleFiles(asked, given.append)

    def read_and_write(listeners: Any) -> RuleBook:
        book = read_rules(listeners)
        path.write_text(ROLES.replace("up/#", "less"))
        return book

    path.write_text(ROLES.replace("up/#", "more/#"))
    monkeypatch.setattr(reload, "read_rules", read_and_write)
    part.put(part.load(asked))
    part.put(part.load(asked))
    who, policy = (
        Subject("c", "anna"),
        CompiledRules(part.book.tiers(part.book.key("tcp", Principal("anna", "", "c"), "c"))),
    )
    assert len(given) == 2
    assert policy.decide(Action.PUBLISH, "less", who) and not policy.decide(Action.PUBLISH, "more/x", who)
