"""Certificates checked by a real OCSP responder in its own process: good, revoked, silent, slow and lying."""

import datetime
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.http_child import HttpChild, http_child
from tests.e2e.extra_edge import ExtraEdge, extra_edge
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_login import TIMEOUT_S, code, come
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles

ANSWERS = """
import datetime
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import ocsp
authority = pathlib.Path(sys.argv[2])
issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
class Answers(Quiet):
    def do_POST(self):
        asked = ocsp.load_der_ocsp_request(self.body())
        name = json.loads((folder / "names").read_text())[str(asked.serial_number)]
        with (folder / "asked").open("a") as log:
            log.write(name + "\\n")
        said = json.loads((folder / "said").read_text()).get(name, "good")
        if said == "lies":
            body = b"<html>"
        else:
            status = ocsp.OCSPCertStatus.REVOKED if said == "revoked" else ocsp.OCSPCertStatus.GOOD
            now = datetime.datetime.now(datetime.UTC)
            until = now + datetime.timedelta(seconds=-1 if said == "stale" else 600)
            body = ocsp.OCSPResponseBuilder().add_response_by_hash(
                asked.issuer_name_hash, asked.issuer_key_hash, asked.serial_number, asked.hash_algorithm, status,
                now - datetime.timedelta(minutes=5), until, now if said == "revoked" else None, None,
            ).responder_id(ocsp.OCSPResponderEncoding.HASH, issuer).sign(key, hashes.SHA256()).public_bytes(
                serialization.Encoding.DER
            )
        self.send_response(302 if said == "redirect" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "/other")
        self.end_headers()
        self.wfile.write(body)
"""


class Place(NamedTuple):
    """An edge that asks a responder, in both modes."""

    cluster: LocalCluster
    edge: ExtraEdge
    folder: Path
    authority: DevelopmentAuthority
    responder: HttpChild

    def says(self, **behaviour: str) -> None:
        (self.folder / "next").write_text(json.dumps(behaviour))
        (self.folder / "next").replace(self.folder / "said")

    def device(self, name: str) -> CertificateFiles:
        from cryptography import x509

        files = self.authority.client(name)
        names = json.loads((self.folder / "names").read_text())
        names[str(x509.load_pem_x509_certificate(files.certificate.read_bytes()).serial_number)] = name
        (self.folder / "names").write_text(json.dumps(names))
        return files

    def code(self, listener: str, shown: CertificateFiles) -> int:
        return code(self.edge.port(listener), shown=shown, trusted=self.cluster.data / "tls" / "ca.pem")

    def at_once(self, listener: str) -> float:
        """Return how many logins of a listener were answered without asking, since its breaker is open."""
        page = self.cluster.metrics_at(self.edge.addresses["metrics"])
        row = rf'^stratamq_ocsp_logins_total\{{.*listener="{listener}".*outcome="breaker_open".*\}} (\S+)'
        return sum(map(float, re.findall(row, page, re.M)))

    def asked(self, name: str) -> int:
        path = self.folder / "asked"
        return path.read_text().splitlines().count(name) if path.exists() else 0


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with local_cluster("--edges", "1") as cluster:
        authority = DevelopmentAuthority(cluster.data / "devices", "devices", datetime.datetime.now(datetime.UTC))
        client_ca = str(authority.client().authority)
        folder = cluster.data / "responder"
        folder.mkdir()
        (folder / "said").write_text("{}")
        (folder / "names").write_text("{}")
        with http_child(ANSWERS, str(folder), str(cluster.data / "devices")) as responder:
            shared = {"tls": True, "allow_anonymous": False, "client_ca": client_ca, "ocsp_url": responder.url("/")}
            tables = {mode: {**shared, "ocsp": mode} for mode in ("soft", "require")}
            with extra_edge(cluster, tables) as edge:
                yield Place(cluster, edge, folder, authority, responder)


def test_good_and_revoked(place: Place) -> None:
    """Each listener requests each status once, and caches it until the answer's next update."""
    good, bad = place.device("good"), place.device("bad")
    place.says(bad="revoked")
    for listener in ("soft", "require"):
        for _ in range(2):
            assert place.code(listener, good) == 0
            assert place.code(listener, bad) == 0x87
    assert (place.asked("good"), place.asked("bad")) == (2, 2)
    assert code(place.edge.port("require"), trusted=place.cluster.data / "tls" / "ca.pem") == 0x87


@pytest.mark.parametrize("answer", ["lies", "stale", "redirect"])
def test_invalid_answers_not_cached(place: Place, answer: str) -> None:
    """Soft mode accepts the client, require mode refuses it; no answer is cached, and no other address is used."""
    shown = place.device(answer)
    place.says(**{answer: answer})
    assert place.code("soft", shown) == 0
    assert place.code("require", shown) == 0x88
    assert place.asked(answer) == 2
    place.says()
    assert place.code("require", shown) == 0


def test_hung_responder_opens_breaker(place: Place) -> None:
    """2 s in all, then at once, while its breaker is open; cached answers apply, and connected clients stay."""
    known, fresh = place.device("known"), [place.device(f"fresh-{number}") for number in range(6)]
    place.says()
    trusted = place.cluster.data / "tls" / "ca.pem"
    stands, standing = come(place.edge.port("require"), shown=known, trusted=trusted)
    assert standing.wait(TIMEOUT_S) and standing.code == 0
    place.responder.stand_still()
    try:
        for listener, expected in (("require", 0x88), ("soft", 0)):
            clients = [come(place.edge.port(listener), shown=shown, trusted=trusted) for shown in fresh]
            for _, outcome in clients:
                assert outcome.wait(TIMEOUT_S) and outcome.code == expected
            late, before = place.device(f"late-{listener}"), place.at_once(listener)
            while place.at_once(listener) == before:  # each fifth second one probes
                assert place.code(listener, late) == expected
            for client, _ in clients:
                client.disconnect()
                client.loop_stop()
        assert place.code("require", known) == 0
    finally:
        place.responder.go_on()
    deadline = time.monotonic() + TIMEOUT_S
    while place.code("require", fresh[0]) != 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert not standing.gone.is_set()
    stands.disconnect()
    stands.loop_stop()
    page = place.cluster.metrics_at(place.edge.addresses["metrics"])
    assert 'stratamq_ocsp_unanswered_total{listener="soft"}' in page
    assert 'stratamq_ocsp_breaker_open{listener="require"} 0' in page
