"""The chain of a listener from its settings, with the content of all files of its steps.

This module only reads: an error refuses the start, or the whole reload, with one line that names the file.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from access.files import read_secret
from access.identity.certificates import CertificateStep, NameKind, NameUse
from access.identity.chain import Chain, ChainRules
from access.identity.http_answer import HttpStep
from access.identity.ocsp import OcspMode, OcspStep
from access.identity.password_file import read_password_file
from access.identity.password_step import FileUsers, PasswordStep, RouterUsers
from access.identity.passwords import HashKind, PasswordRecord, has_argon2
from access.identity.principal import AuthenticationStep, no_acl
from access.identity.revocation import read_authorities
from access.identity.scram import Scram, load_users
from access.identity.scram_step import ScramStep
from access.rules.claims import read_acl
from conf.errors import UserError
from conf.login_settings import StepName
from conf.settings import EdgeSettings, ListenerSettings
from edge.login.chains import Chains
from edge.login.token_settings import token_step
from wire.node.reload_parts import file_marks, secret_marks

__all__ = ["ListenerChain", "shared_secret", "steps_of"]

SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 4096


def steps_of(listener: ListenerSettings, edge: EdgeSettings) -> tuple[StepName, ...]:
    """Return the configured steps of a listener, or by default each step with settings."""
    if listener.authentication:
        return listener.authentication
    there: dict[StepName, bool] = {
        "certificate": listener.client_ca is not None or listener.proxy_identity,
        "token": listener.has_token_keys,
        "password": listener.password_file is not None or listener.cluster_users,
        "scram": edge.scram_users_file is not None or (listener.cluster_users and edge.scram_secret_file is not None),
        "http": bool(listener.http_url),
    }
    return tuple(name for name, is_there in there.items() if is_there)


class ListenerChain:
    """The chain of a listener, with the content of its files.

    Attributes:
        chain: The chain.
        users: Facts of each user of a file, by the step that verifies it.
        marks: Of every file of the steps, taken before its content.
        token_keys: Those of the files with keys of tokens.

    Raises:
        UserError: A file is missing or unusable.
    """

    def __init__(self, listener: ListenerSettings, edge: EdgeSettings, chains: Chains) -> None:
        self.users: dict[str, Mapping[str, object]] = {}
        self._listener, self._edge, self._chains = listener, edge, chains
        secret = [listener.token_secret] if listener.token_secret is not None else []
        self.token_keys = {**file_marks(listener.token_keys), **secret_marks(secret)}
        self.marks = dict(self.token_keys)
        steps = [*self._ocsp(), *(step for name in steps_of(listener, edge) for step in self._steps(name))]
        rules = ChainRules(listener.allow_anonymous, listener.client_id_form)
        self.chain = Chain(steps, rules, chains.revoked_of(listener.name), chains.bans)

    def is_gone(self, method: str, user: str, former: "ListenerChain") -> bool:
        """Return whether a user of the former chain's files was removed, or has another secret.

        Removal of a token key ends all clients with tokens: they log in again with the remaining keys.
        """
        if method == "token":  # the key of its token is unknown
            return not former.token_keys.items() <= self.token_keys.items()
        known = former.users.get(method)
        return known is not None and known.get(user) != self.users.get(method, {}).get(user)

    def _steps(self, name: StepName) -> Iterator[AuthenticationStep]:
        listener, chains = self._listener, self._chains
        if name == "certificate":
            yield CertificateStep(NameKind(listener.certificate_name), NameUse(listener.certificate_use))
        elif name == "scram":
            yield self._scram()
        elif name == "http":
            yield HttpStep(chains.secret, listener.http_superuser_role, read_acl if listener.http_acl else no_acl)
        elif name == "token":
            yield token_step(listener, chains.source_of(listener))
        else:
            of_cluster = RouterUsers(chains.secret) if listener.cluster_users else None
            if listener.password_file is not None:
                self.marks |= file_marks([listener.password_file])
                records = self.users[name] = _password_records(listener.password_file)
                yield PasswordStep(FileUsers(records, chains.secret), chains.known, of_cluster)
            if of_cluster is not None:
                yield PasswordStep(of_cluster, chains.known)

    def _ocsp(self) -> Iterator[AuthenticationStep]:
        """Return the step that checks certificates, before any step that may accept the client."""
        listener, unanswered = self._listener, self._chains.unanswered
        if listener.ocsp == "off":
            return
        assert listener.client_ca is not None
        self.marks |= file_marks([listener.client_ca])

        def count() -> None:
            unanswered[(listener.name,)] += 1

        yield OcspStep(OcspMode(listener.ocsp), read_authorities(listener.client_ca), count)

    def _scram(self) -> AuthenticationStep:
        listener, path, shared = self._listener, self._edge.scram_users_file, self._edge.scram_secret_file
        asks = listener.cluster_users and shared is not None
        if path is None and not asks:
            raise UserError(
                f'listener {listener.name}: step "scram" needs edge.scram_users_file, or '
                "cluster_users with edge.scram_secret_file"
            )
        if shared is None:
            raise UserError(
                f"{path}: unknown user names need the same salt at every edge and after a restart: set a secret "
                "in edge.scram_secret_file (`head -c 32 /dev/urandom` makes one), the same at every edge"
            )
        self.marks |= {**file_marks([path] if path is not None else []), **secret_marks([shared])}
        users = load_users(path) if path is not None else {}
        self.users["scram"] = users
        method = Scram(users, lambda: secrets.token_urlsafe(24), shared_secret(shared), asks)
        return ScramStep(method, listener.scram_without_tls)


def shared_secret(path: Path) -> bytes:
    """Return the secret of ``edge.scram_secret_file``.

    Raises:
        UserError: The file is unusable, or its secret is too short.
    """
    secret = read_secret(path, SECRET_BYTES_MAX)
    if len(secret) < SECRET_BYTES_MIN:
        raise UserError(
            f"{path}: a secret of {len(secret)} bytes is too short: create one with `head -c 32 /dev/urandom` "
            "and copy it to every edge"
        )
    return hashlib.sha256(b"stratamq scram names\0" + secret).digest()


def _password_records(path: Path) -> Mapping[str, PasswordRecord]:
    records = read_password_file(path)
    if any(record.kind == HashKind.ARGON2ID for record in records.values()) and not has_argon2():
        raise UserError(
            f"{path}: has argon2id hashes, which the installed cryptography cannot compute: use "
            "another build of it, or make the file with mosquitto_passwd -H sha512-pbkdf2"
        )
    return records
