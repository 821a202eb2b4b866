"""Tiers of a client, and their order of evaluation."""

from access.policy.view import PolicyView
from access.rules.rules import ALL_ACTIONS, Action, CompiledRules, Grant, Subject, make_rule
from edge.rights.sources import RuleBook, Sources
from tests.edge.rights.ruled import acl, principal, roles

FILE = "topic read open\nuser anna\ntopic write a\npattern write own/%c"


def may(sources: Sources, user: str, topic: str, client_id: str = "c", **more: object) -> bool:
    who = principal(user, client_id, **more) if user else None
    tiers = sources.tiers(sources.key(who, client_id), PolicyView())
    return CompiledRules(tiers, sources.groups_named).decide(Action.PUBLISH, topic, Subject(client_id, user))


def test_equal_rules_have_equal_keys() -> None:
    sources = acl(FILE)
    assert sources.key(principal("bert"), "1") == sources.key(principal("carl"), "2")
    assert sources.key(principal("anna"), "1") != sources.key(principal("bert"), "1")
    assert sources.key(None, "1") != sources.key(principal("bert"), "1")
    assert sources.key(principal("bert"), "1") != sources.key(principal("bert"), "+")


def test_user_and_role_names_are_separate() -> None:
    """A user named like another source gets none of its rules."""
    sources = acl(FILE)
    for user in ("anonymous", "patterns", "section anna", "role device", "anna "):
        assert not may(sources, user, "a")
    assert may(sources, "anna", "a")


def test_unknown_role_gives_no_rules() -> None:
    sources = Sources(roles=roles().roles)
    assert not may(sources, "anna", "up/a", roles=("nobody", "role device", ""))
    assert may(sources, "anna", "up/a", roles=("device",))
    assert not may(sources, "", "up/a")


def test_patterns_exclude_wildcard_names() -> None:
    assert may(acl(FILE), "bert", "own/c")
    for name in ("+", "#", "a#"):
        assert not may(acl(FILE), "bert", f"own/{name}", name)
        assert not may(acl(FILE), name, "own/c")


def test_credentials_do_not_override_a_deny() -> None:
    everything = ((make_rule(True, ALL_ACTIONS, "#"),),)
    for sources in (roles(), acl("user anna\ntopic deny down/secret/#")):
        assert not may(sources, "anna", "down/secret/a", tiers=everything)
        assert may(sources, "anna", "elsewhere", tiers=everything)


def test_partial_grants_with_acl_file_or_setting() -> None:
    assert not roles().filters
    assert roles(overlap=True).filters
    assert acl(FILE).filters


def test_gateway_topics_are_reserved() -> None:
    """No rule or credential grants them to others, and none removes them from a gateway."""
    everything = ((make_rule(True, ALL_ACTIONS, "#"), make_rule(True, ALL_ACTIONS, "$gateway/#")),)
    book = RuleBook({"l": Sources()})
    for user, is_gateway in (("", False), ("anna", False), ("gateway", False), ("gateway/bridge", True)):
        who = Subject("c", user, listener="l")
        policy = CompiledRules(book.tiers(book.key("l", principal(user, "c", tiers=everything) if user else None, "c")))
        for topic in ("$gateway", "$gateway/presence/a"):
            for action in (Action.PUBLISH, Action.RETAIN, Action.WILL, Action.RECEIVE):
                assert policy.decide(action, topic, who, 0) is is_gateway
        expected = Grant.GRANTED if is_gateway else Grant.REFUSED
        for wanted in ("$gateway/#", "$gateway/+/a", "$gateway/presence/a"):
            assert policy.grant(wanted, who, 0) is expected
        assert not user or policy.grant("#", who, 0) is Grant.GRANTED  # it matches no topic that starts with $
