"""Settings of the HTTP service for operators: address, authentication, and retained data.

The defaults are for one machine: loopback, without TLS. Another address needs TLS and a way to log in.
"""

from ipaddress import ip_address
from pathlib import Path

from pydantic import BaseModel, Field, field_validator, model_validator

from conf.served_hosts import HostText
from conf.url_settings import HttpUrl

__all__ = ["AdminSettings"]

HOUR_S = 3_600.0


class AdminSettings(BaseModel, frozen=True, extra="forbid"):
    """Section ``admin``."""

    bind: str = Field(default="127.0.0.1", description="address; another than loopback needs certificate and key")
    port: int = Field(default=18_083, ge=0, le=65_535, description="TCP port; 0: chosen by the system and printed")
    hosts: tuple[HostText, ...] = Field(
        default=(),
        max_length=64,
        description="names, without ports, by which browsers and programs reach this service, in addition to loopback, "
        "its address and the names in its certificate, such as that of a proxy in front or of a "
        "container's host; *.parent is all names one level below, * any; requests for others get 421 (DNS "
        "rebinding)",
    )
    certificate: Path | None = Field(default=None, description="PEM chain of this service, for HTTPS")
    key: Path | None = Field(default=None, description="PEM private key of the certificate")
    client_ca: Path | None = Field(
        default=None,
        description="PEM of the authority of operators' certificates, named stratamq://<cluster>/<role>/<name>; the "
        "authority of the nodes signs those of `stratamq init`",
    )
    client_crl_files: tuple[Path, ...] = Field(
        default=(),
        max_length=64,
        description="revocation lists (PEM or DER) of that authority: requests with a listed certificate are refused; "
        "checked every 30 s and at a reload; a stale list refuses all certificates; none: node.crl_files, "
        "if client_ca is the authority of the nodes",
    )
    login_code: bool = Field(
        default=False, description="print an address with a code that logs one browser in as admin; `stratamq up` does"
    )
    session_s: float = Field(
        default=12 * HOUR_S, ge=60, le=7 * 24 * HOUR_S, description="lifetime of a browser's login in s"
    )
    idle_s: float = Field(
        default=HOUR_S, ge=60, le=24 * HOUR_S, description="s without a request after which a login ends earlier"
    )
    sessions_max: int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description=("logged-in browsers; beyond it the most idle one of the token with most of them is removed"),
    )
    requests_max: int = Field(
        default=64,
        ge=1,
        le=1_000,
        description=("concurrent requests of authenticated callers; one caller may use all free ones; more get 503"),
    )
    otlp_endpoint: HttpUrl = Field(
        default=HttpUrl(),
        description="URL of an OpenTelemetry collector (OTLP over HTTP, such as http://127.0.0.1:4318), to which "
        "messages of traces are exported as spans, or file:PATH (mode 0600) of a file with it; needs the "
        "extra otel; none: no export",
    )
    audits_dir: Path | None = Field(
        default=None,
        description="folder with the reports of `stratamq jobs audit --output`, for the page Audits; none: the page is "
        "empty",
    )
    history: bool = Field(
        default=True,
        description=("poll the nodes' metrics every 5 s, for charts of an hour; false: only while a page is open"),
    )

    @field_validator("client_crl_files", "hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Accept lists as ``a,b`` from the environment and flags."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="after")
    def _check_access(self) -> "AdminSettings":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key: client certificates need TLS")
        if self.client_crl_files and self.client_ca is None:
            raise ValueError("client_crl_files needs client_ca: without it there are no client certificates")
        if not self.is_loopback and self.certificate is None:
            raise ValueError(
                f"bind = {self.bind} is not loopback: passwords would go in clear; set certificate and key"
            )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the service."""
        try:
            return ip_address(self.bind.strip("[]")).is_loopback
        except ValueError:
            return self.bind == "localhost"
