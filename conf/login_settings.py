"""Settings of logins: required credentials of a listener's clients, and bounds of the work for them.

Each setting has a reader; ``conf/edge_settings.py`` includes both models.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from conf.url_settings import HttpUrl, KeySetUrl, ProtectedUrl

__all__ = ["EdgeLogin", "ListenerLogin", "StepName"]

StepName = Literal["certificate", "token", "password", "scram", "http"]


class ListenerLogin(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge.listeners.<name>]``: the chain of authenticators."""

    authentication: tuple[StepName, ...] = Field(
        default=(),
        description="steps in order, the first one for a client's credentials decides; none: each one that is "
        "configured",
    )
    crl_files: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description=(
            "revocation lists of client_ca, PEM or DER, checked every 30 s; stale or missing: 0x87 at CONNECT"
        ),
    )
    ocsp: Literal["off", "soft", "require"] = Field(
        default="off",
        description="check each client's certificate at ocsp_url at CONNECT; without a usable response soft continues, "
        "require returns 0x88",
    )
    ocsp_url: HttpUrl = Field(
        default=HttpUrl(),
        description="URL of the responder of client_ca, or file:PATH (mode 0600) of a file with it; URLs in "
        "certificates are never used",
    )
    certificate_name: Literal["cn", "san_dns", "san_uri", "san_email", "dn", "fingerprint"] = Field(
        default="cn", description="part of a client's certificate with its name; it must exist exactly once"
    )
    certificate_use: Literal["user", "client_id", "both"] = Field(
        default="user", description="meaning of that name: user, client identifier, or both"
    )
    password_file: Path | None = Field(
        default=None, description="users of the step password, as mosquitto_passwd writes them; not readable by others"
    )
    cluster_users: bool = Field(
        default=False,
        description="the steps password and scram (edge.scram_secret_file) also accept users of the cluster (`stratamq "
        "user`), after the file",
    )
    scram_without_tls: bool = Field(
        default=False, description="accept SCRAM on a plain listener, where an observer can test passwords offline"
    )
    token_keys: tuple[Path, ...] = Field(
        default=(), max_length=64, description="public keys in PEM, one a file, that verify tokens (JWT) of clients"
    )
    token_secret: Path | None = Field(
        default=None, description="shared secret that signs tokens, 32 bytes or more; not readable by others"
    )
    token_secret_algorithm: Literal["HS256", "HS384", "HS512"] = Field(
        default="HS256", description="the one algorithm of token_secret"
    )
    token_jwks_url: KeySetUrl = Field(
        default=KeySetUrl(),
        description="URL of a key set (JWKS), or file:PATH (mode 0600) of a file with it; fetched every 300 s, valid "
        "for 24 h; https, or http on loopback",
    )
    token_jwks_ca: Path | None = Field(
        default=None, description="PEM that verifies that address; none: the authorities of the system"
    )
    token_issuer: str = Field(default="", max_length=1024, description="iss that a token must have; none: any")
    token_audience: str = Field(
        default="", max_length=1024, description="aud that a token must name; none: a token with an aud is refused"
    )
    token_user_claim: str = Field(
        default="sub", min_length=1, max_length=256, description="claim of a token that names the user"
    )
    token_acl: bool = Field(
        default=False, description="apply rules in a token's claim acl, in EMQX's two forms, after all other rules"
    )
    http_url: ProtectedUrl = Field(
        default=ProtectedUrl(),
        description="URL for the step http, which sends clients with a user name in EMQX's format, or file:PATH (mode "
        "0600) of a file with it; https, or http on loopback",
    )
    http_ca: Path | None = Field(
        default=None, description="PEM that verifies that address; none: the authorities of the system"
    )
    http_certificate: Path | None = Field(
        default=None, description="PEM chain that this edge sends there; with http_key"
    )
    http_key: Path | None = Field(default=None, description="PEM private key of http_certificate; mode 0600")
    http_acl: bool = Field(
        default=False, description="apply rules in the response's acl, in EMQX's two forms, after all other rules"
    )
    http_superuser_role: str = Field(
        default="", max_length=256, description="role of clients with is_superuser in the response; none: no role"
    )
    client_id_form: str = Field(
        default="",
        max_length=1024,
        pattern=r"^(?:[^{}]|\{user\}|\{cn\})*$",
        description=("form of client identifiers: text with {user} and {cn}, ... at its end for any text; none: any"),
    )

    @model_validator(mode="after")
    def _steps(self) -> "ListenerLogin":
        if len(set(self.authentication)) != len(self.authentication):
            raise ValueError("authentication names a step twice")
        asks_passwords = not self.authentication or "password" in self.authentication
        if "password" in self.authentication and self.password_file is None and not self.cluster_users:
            raise ValueError('authentication has "password", which needs password_file or cluster_users')
        if self.password_file is not None and not asks_passwords:
            raise ValueError('password_file is read by the step "password", which authentication does not have')
        if self.cluster_users and not asks_passwords and "scram" not in self.authentication:
            raise ValueError('cluster_users is for the steps "password" and "scram": authentication has neither')
        self._token_settings()
        self._http_settings()
        if self.crl_files and getattr(self, "client_ca", None) is None:
            raise ValueError("crl_files needs client_ca, which signs them")
        if self.crl_files and getattr(self, "proxy_identity", False):
            raise ValueError("crl_files and proxy_identity: the verifier of the certificates must check the lists")
        if (self.ocsp != "off") != bool(self.ocsp_url):
            raise ValueError("ocsp and ocsp_url go together")
        if self.ocsp != "off" and (getattr(self, "client_ca", None) is None or getattr(self, "proxy_identity", False)):
            raise ValueError(
                "ocsp needs client_ca, and no proxy_identity: the verifier of the certificates must query OCSP"
            )
        verified = getattr(self, "client_ca", None) is not None or getattr(self, "proxy_identity", False)
        if "certificate" in self.authentication and not verified:
            raise ValueError('authentication has "certificate", which needs client_ca or proxy_identity')
        return self

    @property
    def has_token_keys(self) -> bool:
        """Whether tokens can be verified."""
        return bool(self.token_keys or self.token_secret is not None or self.token_jwks_url)

    def _token_settings(self) -> None:
        if "token" in self.authentication and not self.has_token_keys:
            raise ValueError('authentication has "token", which needs token_keys, token_secret or token_jwks_url')
        if self.has_token_keys and self.authentication and "token" not in self.authentication:
            raise ValueError('keys of tokens are for the step "token", which authentication does not have')
        if self.token_jwks_ca is not None and not self.token_jwks_url.may_be_https:
            raise ValueError("token_jwks_ca verifies an address of token_jwks_url that begins with https://")

    def _http_settings(self) -> None:
        if "http" in self.authentication and not self.http_url:
            raise ValueError('authentication has "http", which needs http_url')
        if self.http_url and self.authentication and "http" not in self.authentication:
            raise ValueError('http_url is for the step "http", which authentication does not have')
        if not self.http_url and (self.http_acl or self.http_superuser_role):
            raise ValueError("http_acl and http_superuser_role need http_url")
        if (self.http_ca or self.http_certificate or self.http_key) and not self.http_url.may_be_https:
            raise ValueError("http_ca, http_certificate and http_key are for an http_url that begins with https://")
        if (self.http_certificate is None) != (self.http_key is None):
            raise ValueError("http_certificate and http_key go together")
        roles = getattr(self, "roles_file", None) is not None or getattr(self, "cluster_roles", False)
        if self.http_superuser_role and not roles:
            raise ValueError("http_superuser_role needs roles_file or cluster_roles, which define the role")


class EdgeLogin(BaseModel, frozen=True, extra="forbid"):
    """Part of ``[edge]``: bounds of hashes, callouts and key sets, for all listeners together."""

    hashes_waiting_max: int = Field(
        default=200,
        ge=1,
        le=100_000,
        description="logins queued for the password hash thread; more get 0x89; served round robin by address",
    )
