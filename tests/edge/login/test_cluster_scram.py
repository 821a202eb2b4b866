"""SCRAM of the cluster's users at one edge: policy steps before, during and after an exchange."""

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
    """Return a client with its challenge, and the unsent proof."""
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
        ([c.DeleteUser("ann"), ANN], 0),  # the same secret and name: as good as a later login
        ([c.SetPassword("ann", verifier=OTHER)], 0x87),
    ],
)
def test_policy_step_during_scram_exchange(meanwhile: list[c.SimpleCommand], expected: int) -> None:
    """The proof is checked by the current policy; steps for other users have no effect."""
    place = cluster(ANN, BOB)
    session, proof = begin(place)
    place.order(*meanwhile)
    place.run()
    assert go_on(place, session, proof) == [expected]


def test_policy_step_after_proof_requires_reconnect() -> None:
    """The exchange is complete, so the client must reconnect, and its session is closed."""
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


def test_changed_password_disconnects_user() -> None:
    """Another password, or no SCRAM verifier."""
    for taken in (c.SetPassword("ann", verifier=OTHER), c.SetPassword("ann"), c.SetDisabled("ann", True)):
        place = cluster(ANN)
        session, proof = begin(place)
        assert go_on(place, session, proof) == [0]
        place.order(taken)
        place.run()
        assert codes(session) == [0x87] and place.in_force == 2
