"""The step ``http``: a request to the operator's server and its response, in EMQX's format.

The shell posts the body and passes the response; it owns addresses, timeouts, cache and breaker. A response with an
unknown name or type is an error and never an allow: otherwise a misspelt limit of a right would not limit it.
"""

import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from access.identity.attributes import read_attributes
from access.identity.certificates import NameKind
from access.identity.principal import (
    UTC_MAX,
    AclReader,
    Allow,
    Answer,
    Credentials,
    Deny,
    Failed,
    Job,
    Pass,
    Principal,
    TimePoint,
    Wait,
    name_fault,
    no_acl,
)
from access.identity.strict_json import is_number, read_json
from access.rules.rules import Tier
from access.rules.subject import NOTHING
from mqtt.reasons import ReasonCode

__all__ = ["HttpJob", "HttpReply", "HttpStep", "HttpVerdict", "cache_s", "read_answer", "request_body"]

ANSWER_BYTES_MAX = 65_536
ANSWER_DEPTH_MAX = 8
CACHE_S_MAX = 300
REFUSED_CACHE_S = 5
MAX_AGE = re.compile(r"max-age=([0-9]{1,9})", re.ASCII)
RESULTS = ("allow", "deny", "ignore")
FIELDS = frozenset(("result", "is_superuser", "client_attrs", "acl", "expire_at"))


@dataclass(frozen=True, slots=True)
class HttpJob:
    """Post the body as application/json; the result is an ``HttpReply``, or any other object on failure.

    Attributes:
        cache_key: Keyed digest of the body, under which the shell may cache the response for ``cache_s`` seconds.
    """

    body: bytes = field(repr=False)
    cache_key: bytes
    kind: str = field(default="http", init=False)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete response; a missing header is empty."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    cache_control: str = ""


@dataclass(frozen=True, slots=True)
class HttpVerdict:
    """A decoded response; ``acl`` is raw, None if absent."""

    result: str
    is_superuser: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    acl: object = None
    expires_at_utc: float | None = None


def request_body(credentials: Credentials) -> bytes | None:
    """Return the request about a client; None if its password is not text, which JSON needs."""
    try:
        password = (credentials.password or b"").decode()
    except UnicodeDecodeError:
        return None
    facts = credentials.certificate
    names = facts.names if facts is not None else {}
    request = {
        "clientid": credentials.client_id,
        "username": credentials.user,
        "password": None if credentials.password is None else password,
        "peerhost": credentials.address,
        "listener": credentials.listener,
        "cert_common_name": _only(names.get(NameKind.CN, ())),
        "cert_subject": _only(names.get(NameKind.DN, ())),
    }
    try:
        return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return None


def _only(values: tuple[str, ...]) -> str:
    return values[0] if len(values) == 1 else ""


def read_answer(reply: HttpReply) -> HttpVerdict:
    """Return the verdict in a response.

    Raises:
        ValueError: It is invalid: a status other than 200 and 204, another content type, or an unknown name or type.
    """
    if reply.status == 204 and not reply.body:
        return HttpVerdict("allow")
    if reply.status != 200:
        raise ValueError(f"status {reply.status:d}")
    if reply.content_type.partition(";")[0].strip().lower() != "application/json":
        raise ValueError("content that is no application/json")
    answer = read_json(reply.body, ANSWER_BYTES_MAX, ANSWER_DEPTH_MAX)
    if not isinstance(answer, dict):
        raise ValueError("an answer that is no map")
    if not answer.keys() <= FIELDS:
        raise ValueError(f"an answer with names beside {', '.join(sorted(FIELDS))}")
    result, is_superuser, expires = answer.get("result"), answer.get("is_superuser", False), answer.get("expire_at")
    if not isinstance(result, str) or result not in RESULTS:
        raise ValueError("a result that is not allow, deny or ignore")
    if not isinstance(is_superuser, bool):
        raise ValueError("is_superuser that is not true or false")
    if "expire_at" not in answer:
        expires_at_utc = None
    elif is_number(expires) and 0 < expires <= UTC_MAX:
        expires_at_utc = float(expires)
    else:
        raise ValueError("expire_at that is no time")
    if "acl" in answer and not isinstance(answer["acl"], list | dict):
        raise ValueError("acl that is no list or map of rules")
    attributes = read_attributes(answer["client_attrs"]) if "client_attrs" in answer else NOTHING
    return HttpVerdict(result, is_superuser, attributes, answer.get("acl"), expires_at_utc)


def cache_s(reply: HttpReply) -> int:
    """Return how many seconds a response may be cached; 0 for an error."""
    try:
        answer = read_answer(reply)
    except ValueError:
        return 0
    words = [word.strip().lower() for word in reply.cache_control.split(",")]
    if "no-store" in words or "no-cache" in words:
        return 0
    if answer.result != "allow":
        return REFUSED_CACHE_S
    found = [age for age in map(MAX_AGE.fullmatch, words) if age is not None]
    return min(int(found[0][1]), CACHE_S_MAX) if len(found) == 1 else 0


class HttpStep:
    """The step ``http``.

    Args:
        secret: Of this process, for keys of the cache.
        superuser_role: Role for ``is_superuser``; empty: none.
        read_acl: Parses ``acl`` of a response.
    """

    name = "http"
    methods: tuple[str, ...] = ()

    def __init__(self, secret: bytes, superuser_role: str = "", read_acl: AclReader = no_acl) -> None:
        self._secret = secret
        self._superuser_roles = (superuser_role,) if superuser_role else ()
        self._read_acl = read_acl

    def begin(self, credentials: Credentials, moment: TimePoint) -> Answer:
        """Request a verdict about a client with a user name."""
        del moment
        if credentials.user is None or credentials.method:
            return Pass()
        fault = name_fault(credentials.user)
        body = None if fault else request_body(credentials)
        if body is None:
            return Deny(
                ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"http: the user name {fault or 'or password is no text'}"
            )
        return Wait(HttpJob(body, hmac.digest(self._secret, body, "sha256")))

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Answer:
        """Return the answer for the response."""
        if not isinstance(job, HttpJob) or not isinstance(result, HttpReply) or credentials.user is None:
            return Failed("http: no reply")
        try:
            answer = read_answer(result)
            tiers: tuple[Tier, ...] = self._read_acl(answer.acl) if answer.acl is not None else ()
        except ValueError as error:
            return Failed(f"http: {error}")
        if answer.result == "ignore":
            return Pass()
        if answer.result == "deny":
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "http: refused by the server")
        if answer.expires_at_utc is not None and not moment.utc < answer.expires_at_utc:
            return Deny(ReasonCode.NOT_AUTHORIZED, "http: an answer that has expired")
        return Allow(
            Principal(
                credentials.user,
                self.name,
                credentials.client_id,
                self._superuser_roles if answer.is_superuser else (),
                tiers,
                answer.attributes,
                answer.expires_at_utc,
            )
        )
