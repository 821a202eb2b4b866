"""SCRAM of the cluster's users at one edge: what the policy takes before, during and behind an exchange."""

import pytest

from access.identity.scram import Scram, make_verifier
from access.identity.scram_step import ScramStep
from access.policy import commands as c
from mqtt.packets import Auth, Connect
from mqtt.properties import PropertyId
from tests.clients.scram_exchange import METHOD, client_final, client_first
from tests.edge.edge_harness import Session
from tests.edge.test_cluster_policy import BOB, CLOSED, Cluster, codes
from wire.messages.sessions import OpenSession

VERIFIER, OTHER = (make_verifier("ann", word, b"salt" * 4) for word in ("good", "other"))
ANN = c.AddUser("ann", verifier=VERIFIER)


def cluster(*before: c.SimpleCommand) -> Cluster:
    return Cluster(*before, more=ScramStep(Scram({}, lambda: "server", b"secret", asks=True), allow_plain=True))


def begin(place: Cluster) -> tuple[Session, bytes]:
    """Return a client that has its challenge, and the proof that it has not sent."""
    session = place.edge.accept(CLOSED)
    session.send(Connect("c", properties={**METHOD, PropertyId.AUTHENTICATION_DATA: client_first("ann")}))
    place.run()
    (auth,) = session.read()
    assert isinstance(auth, Auth)
    data = auth.properties[PropertyId.AUTHENTICATION_DATA]
    assert isinstance(data, bytes)
    return session, client_final("ann", "good", data)


def go_on(place: Cluster, session: Session, proof: bytes) -> list[int]:
    session.send(Auth(0x18, {**METHOD, PropertyId.AUTHENTICATION_DATA: proof}))
    place.run()
    return codes(session)


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [
        ([], 0),
        ([c.SetDisabled("bob", True)], 0),
        ([c.SetDisabled("ann", True)], 0x87),
        ([c.DeleteUser("ann")], 0x87),
        ([c.DeleteUser("ann"), ANN], 0),  # the same secret under the same name: as good as a later login
        ([c.SetPassword("ann", verifier=OTHER)], 0x87),
    ],
)
def test_what_is_taken_while_the_client_thinks(meanwhile: list[c.SimpleCommand], expected: int) -> None:
    """A proof counts by what holds when it comes; what is taken from others disturbs nobody."""
    place = cluster(ANN, BOB)
    session, proof = begin(place)
    place.order(*meanwhile)
    place.run()
    assert go_on(place, session, proof) == [expected]


def test_rights_that_are_taken_behind_the_proof() -> None:
    """It has had its exchange: it is told to come again, and its session is closed."""
    place = cluster(ANN, BOB)
    session, proof = begin(place)
    place.edge.held.add(OpenSession)
    assert go_on(place, session, proof) == []
    (request,) = place.edge.take(OpenSession)
    place.order(c.SetDisabled("bob", True))
    answer = place.edge.reply(request)
    assert answer is not None
    place.edge.storage(answer)
    place.run()
    assert codes(session) == [0x89]


def test_a_user_is_ended_with_its_password() -> None:
    """Another password, and none for SCRAM any more."""
    for taken in (c.SetPassword("ann", verifier=OTHER), c.SetPassword("ann"), c.SetDisabled("ann", True)):
        place = cluster(ANN)
        session, proof = begin(place)
        assert go_on(place, session, proof) == [0]
        place.order(taken)
        place.run()
        assert codes(session) == [0x87] and place.in_force == 2
