"""Which tiers a client has, and in which order they decide."""

from access.policy.view import PolicyView
from access.rules.rules import ALL_ACTIONS, Action, CompiledRules, Grant, Subject, make_rule
from edge.rights.sources import RuleBook, Sources
from tests.edge.rights.ruled import acl, principal, roles

FILE = "topic read open\nuser anna\ntopic write a\npattern write own/%c"


def may(sources: Sources, user: str, topic: str, client_id: str = "c", **more: object) -> bool:
    who = principal(user, client_id, **more) if user else None
    tiers = sources.tiers(sources.key(who, client_id), PolicyView())
    return CompiledRules(tiers, sources.groups_named).decide(Action.PUBLISH, topic, Subject(client_id, user))


def test_clients_with_equal_rules_have_equal_keys() -> None:
    sources = acl(FILE)
    assert sources.key(principal("bert"), "1") == sources.key(principal("carl"), "2")
    assert sources.key(principal("anna"), "1") != sources.key(principal("bert"), "1")
    assert sources.key(None, "1") != sources.key(principal("bert"), "1")
    assert sources.key(principal("bert"), "1") != sources.key(principal("bert"), "+")


def test_names_of_users_and_roles_are_not_mixed_up() -> None:
    """A user whose name looks like another source's gets nothing of it."""
    sources = acl(FILE)
    for user in ("anonymous", "patterns", "section anna", "role device", "anna "):
        assert not may(sources, user, "a")
    assert may(sources, "anna", "a")


def test_an_unknown_role_gives_nothing() -> None:
    sources = Sources(roles=roles().roles)
    assert not may(sources, "anna", "up/a", roles=("nobody", "role device", ""))
    assert may(sources, "anna", "up/a", roles=("device",))
    assert not may(sources, "", "up/a")


def test_patterns_are_closed_to_names_that_look_like_wildcards() -> None:
    assert may(acl(FILE), "bert", "own/c")
    for name in ("+", "#", "a#"):
        assert not may(acl(FILE), "bert", f"own/{name}", name)
        assert not may(acl(FILE), name, "own/c")


def test_no_credential_undoes_the_operators_deny() -> None:
    everything = ((make_rule(True, ALL_ACTIONS, "#"),),)
    for sources in (roles(), acl("user anna\ntopic deny down/secret/#")):
        assert not may(sources, "anna", "down/secret/a", tiers=everything)
        assert may(sources, "anna", "elsewhere", tiers=everything)


def test_parts_are_granted_with_an_acl_file_or_by_setting() -> None:
    assert not roles().filters
    assert roles(overlap=True).filters
    assert acl(FILE).filters


def test_topics_of_gateways_are_theirs_alone() -> None:
    """Protect: no rule gives them to another, also not by its credentials, and none takes them from a gateway."""
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
        assert not user or policy.grant("#", who, 0) is Grant.GRANTED  # which no topic that begins with $ matches
