"""An edge with rules, and clients with identities."""

from pathlib import Path

from access.identity.principal import Allow, Credentials, Job, Pass, Principal, TimePoint
from access.rules.acl_file import parse_acl_file
from access.rules.role_table import make_role_table
from edge.rights.sources import RuleBook, Sources
from tests.edge.edge_harness import Edge, Session

DEVICE = {"publish": ["up/#"], "subscribe": ["down/#"], "deny": ["down/secret/#"]}


def roles(overlap: bool = False, **given: dict[str, object]) -> Sources:
    """Return the rules of a role table; each authenticated client has ``device``."""
    table = make_role_table({"roles": {"device": DEVICE, **given}})
    return Sources(roles=table, authenticated=("device",), overlap=overlap)


def acl(text: str) -> Sources:
    """Return the rules of an acl_file."""
    return Sources(acl=parse_acl_file(Path("acl"), text.encode()))


def principal(user: str, client_id: str = "c", **more: object) -> Principal:
    return Principal(user, "password", client_id, **more)  # type: ignore[arg-type]


class Vouched:
    """A step that knows the registered users, and accepts any password."""

    name = "vouched"
    methods: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.known: dict[str, Principal] = {}

    def begin(self, credentials: Credentials, moment: TimePoint) -> Allow | Pass:
        del moment
        known = self.known.get(credentials.user or "")
        return Allow(known) if known is not None and credentials.password is not None else Pass()

    def resume(self, credentials: Credentials, job: Job, result: object, moment: TimePoint) -> Pass:
        raise AssertionError(credentials, job, result, moment)


def book(sources: Sources) -> RuleBook:
    """Return a rule book with the same rules at every listener."""
    return RuleBook(dict.fromkeys(("plain", "tls"), sources))


def ruled(sources: Sources) -> Edge:
    """Return an edge with rules."""
    return Edge(rules=book(sources), steps=[Vouched()])


def come(edge: Edge, who: Principal, version: int = 5, **options: object) -> Session:
    """Return a connection of a principal, after CONNECT."""
    session = edge.accept()
    (step,) = edge.chains.steps
    assert isinstance(step, Vouched)
    step.known[who.user] = who
    session.connect(who.client_id, version, username=who.user, password=b"p", **options)  # type: ignore[arg-type]
    return session


def somebody(edge: Edge, user: str, client_id: str = "", version: int = 5, **options: object) -> Session:
    """Return a connection of a user, after CONNACK; an empty name is an anonymous client."""
    if user:
        session = come(edge, principal(user, client_id or user), version, **options)
    else:
        session = edge.accept()
        session.connect(client_id or "nobody", version, **options)  # type: ignore[arg-type]
    (session.connack,) = session.read()
    return session
