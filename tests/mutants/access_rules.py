"""Rules of identity, each removed, and the test that detects it (the scenarios are those of ``tests/access``)."""

from collections.abc import Callable
from typing import Any

import pytest

from access.identity import certificates, chain, http_answer, ocsp, revocation, strict_json, tokens
from access.identity.certificates import NameKind
from access.identity.chain import Chain
from access.identity.key_set import KeySource
from access.identity.password_step import KnownLogins, PasswordStep
from access.identity.principal import Failed, Pass
from access.identity.revocation import RevocationSet
from access.rules.rules import _CompiledTier
from access.rules.subject import Placeholder
from tests.access.identity import (
    test_certificates,
    test_chain,
    test_http_answer,
    test_ocsp,
    test_password_step,
    test_revocation,
    test_strict_json,
    test_tokens,
)
from tests.access.rules.random_cases import run
from tests.mutants.seeded import SeededBug

__all__ = ["ACCESS_RULES"]

ONE, TWO = test_revocation.ONE, test_revocation.TWO


def _replaced(owner: object, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a patch that replaces a name by ``make(original)``."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def _failure_goes_on(original: Any) -> Any:
    return lambda self, credentials, index, answer, *rest: (
        None if isinstance(answer, Failed) else original(self, credentials, index, answer, *rest)
    )


def _no_hash_for_strangers(original: Any) -> Any:
    return lambda self, credentials, user, found, moment: (
        Pass() if found is None else original(self, credentials, user, found, moment)
    )


def _stale_is_good(original: Any) -> Any:
    def refusal(self: RevocationSet, issuer: str, serial: str, utc: float) -> str:
        reason: str = original(self, issuer, serial, utc)
        return "" if "stale" in reason else reason

    return refusal


def _always(value: object) -> Callable[[Any], Any]:
    def answer(*_: Any) -> object:
        return value

    return lambda _: answer


def _said(witness: Callable[[], None]) -> Callable[[], None]:
    """Return a witness that reports a missing refusal (``pytest.raises``) as an assertion."""

    def run() -> None:
        try:
            witness()
        except pytest.fail.Exception as error:
            raise AssertionError(str(error)) from None

    return run


def _logins_outlive_a_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KnownLogins, "clear", lambda _: None)
    patch.setattr(KnownLogins, "key", lambda _, user, password, __: user.encode() + b":" + password)


def _no_end(original: Any) -> Any:
    def time(claims: dict[str, object], name: str) -> float | None:
        found: float | None = original(claims, name)
        return test_tokens.EXP if found is None and name == "exp" else found

    return time


class _Anything:
    def __ge__(self, other: object) -> bool:
        return True


def _cases(name: str) -> Callable[[], None]:
    """Return a witness: some thousand random cases of a property."""

    def check() -> None:
        failed = run(name, 1, 0, 5_000)
        assert not failed, failed

    return check


def _last_nonsense() -> None:
    test_http_answer.test_http_step_invalid_response_is_an_error_and_not_cached(len(test_http_answer.NONSENSE) - 1)


ACCESS_RULES = (
    SeededBug(
        "error_taken_for_next",
        "access/identity/chain.py",
        _replaced(Chain, "_outcome", _failure_goes_on),
        lambda: test_chain.test_every_order_of_answers_and_errors(2, True),
        "a step after an error is asked",
    ),
    SeededBug(
        "bans_and_lists_not_asked",
        "access/identity/chain.py",
        _replaced(Chain, "_early", _always(None)),
        test_chain.test_a_revoked_certificate_is_refused_whichever_step_would_admit,
        "a banned or revoked client is admitted",
    ),
    SeededBug(
        "form_of_client_id_not_compared",
        "access/identity/chain.py",
        _replaced(chain, "_has_form", _always(True)),
        lambda: test_chain.test_a_form_of_client_ids("{user}", "alice2", False),
        "another client ID is admitted",
    ),
    SeededBug(
        "nodes_are_clients",
        "access/identity/certificates.py",
        _replaced(certificates, "_is_of_cluster", _always(False)),
        lambda: test_certificates.test_nodes_and_operators_are_never_clients(
            NameKind.CN, ("edge-0",), ("stratamq://c/edge/edge-0",)
        ),
        "a node is a client",
    ),
    SeededBug(
        "stale_list_is_good",
        "access/identity/revocation.py",
        _replaced(RevocationSet, "refusal", _stale_is_good),
        test_revocation.test_revocation_without_current_list_refuses,
        "a stale list is good",
    ),
    SeededBug(
        "list_of_a_stranger",
        "access/identity/revocation.py",
        _replaced(revocation, "_signed", _always(True)),
        _said(
            lambda: test_revocation.test_a_list_that_is_not_whole_current_and_signed_is_refused(
                ONE.crl([7], key=TWO.key), "not signed"
            )
        ),
        "a list by another key is taken",
    ),
    SeededBug(
        "client_answers_for_the_responder",
        "access/identity/ocsp.py",
        _replaced(ocsp, "_may_respond", _always(True)),
        lambda: test_ocsp.test_an_unusable_answer_fails_or_passes_by_mode("client as responder"),
        "a client's certificate signs an answer",
    ),
    SeededBug(
        "no_hash_for_unknown_names",
        "access/identity/password_step.py",
        _replaced(PasswordStep, "_hash", _no_hash_for_strangers),
        test_password_step.test_right_wrong_and_unknown,
        "an unknown name costs no hash",
    ),
    SeededBug(
        "logins_outlive_a_change",
        "access/identity/password_step.py",
        _logins_outlive_a_change,
        test_password_step.test_password_step_reload_invalidates_cache_and_running_hashes,
        "a changed password lets the old one in",
    ),
    SeededBug(
        "token_without_end",
        "access/identity/tokens.py",
        _replaced(tokens, "_time", _no_end),
        lambda: test_tokens.test_claims_that_are_refused("no exp"),
        "a token without exp is accepted",
    ),
    SeededBug(
        "token_for_another_audience",
        "access/identity/tokens.py",
        _replaced(tokens, "_is_for", _always(True)),
        lambda: test_tokens.test_claims_that_are_refused("aud of others"),
        "a token of another audience is accepted",
    ),
    SeededBug(
        "token_that_no_revocation_can_name",
        "access/identity/tokens.py",
        _replaced(tokens, "_token_id", _always("")),
        test_tokens.test_the_name_by_which_a_token_is_revoked,
        "a revoked token stays valid",
    ),
    SeededBug(
        "keys_kept_for_ever",
        "access/identity/key_set.py",
        _replaced(KeySource, "is_fresh", _always(True)),
        test_tokens.test_an_unknown_key_waits_for_a_fetch_once_in_half_a_minute,
        "keys of yesterday verify",
    ),
    SeededBug(
        "each_unknown_key_fetches",
        "access/identity/key_set.py",
        _replaced(KeySource, "grant_fetch", _always(True)),
        test_tokens.test_an_unknown_key_waits_for_a_fetch_once_in_half_a_minute,
        "each unknown name fetches",
    ),
    SeededBug(
        "names_of_an_answer_not_compared",
        "access/identity/http_answer.py",
        lambda patch: patch.setattr(http_answer, "FIELDS", _Anything()),
        _last_nonsense,
        "a misspelt limit of rights is left out",
    ),
    SeededBug(
        "last_of_two_names_counts",
        "access/identity/strict_json.py",
        _replaced(strict_json, "_object", lambda _: dict),
        _said(lambda: test_strict_json.test_texts_that_are_refused(b'{"a":1,"a":2}')),
        "two readings of one text",
    ),
    SeededBug(
        "a_placeholder_is_any_level",
        "access/rules/subject.py Placeholder.is_level",
        _replaced(Placeholder, "is_level", _always(True)),
        _cases("names"),
        "a topic without the client's name passes",
    ),
    SeededBug(
        "a_name_with_signs_is_a_level",
        "access/rules/subject.py Placeholder.value",
        _replaced(Placeholder, "value", lambda _: lambda self, who, *_: self.text(who) or None),
        _cases("decisions"),
        "a hostile name escapes a deny",
    ),
    SeededBug(
        "a_deny_beside_a_grant_is_not_looked_for",
        "access/rules/rules.py _CompiledTier.reaches",
        _replaced(_CompiledTier, "reaches", _always(False)),
        _cases("grants"),
        "a filter is granted whole, and a topic of it refused",
    ),
)
