"""The cost of a client certificate, a CRL and an acl_file per CONNECT: the decisions alone, against none of them.

    python -m bench.connect_access [--rounds N]

Without: the chain of a listener for anonymous clients, and one role that allows all topics. With: the certificate is
read, its serial number searched in a list of 10 000, its common name becomes the user, and the client is joined with
the rules of an acl_file of 1 000 users. Alternating rounds, thread CPU time, the best of each; neither includes TLS,
the
session and the answer. Limit: 30 us more. An edge caches the facts of its last clients' certificates
(``edge/login/certificate_facts.py``); the cost of an uncached one is printed beside.
"""

import argparse
import datetime
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from access.identity.certificates import CertificateStep, NameKind
from access.identity.chain import Admitted, Chain, ChainRules
from access.identity.principal import Credentials, TimePoint
from access.identity.revocation import revocation_set
from access.rules.acl_file import parse_acl_file
from access.rules.role_table import make_role_table
from edge.login.certificate_facts import CACHED_MAX, shown_facts
from edge.loop import broker_loop, options
from edge.node.limits import EdgeLimits, ListenerPolicy
from edge.rights.client_rights import ClientRights
from edge.rights.sources import RuleBook, Sources

BAR_US = 30.0
ROUNDS, LOGINS, CLIENTS, REVOKED, USERS = 15, 2_000, 200, 10_000, 1_000
STRANGERS = 2 * CACHED_MAX  # so that none is kept until it comes again
NOW = datetime.datetime.now(datetime.UTC)


class Certificates:
    """An authority, its list, and certificates of clients that are not in it."""

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Devices")])
        year = datetime.timedelta(days=365)

        def made(subject: x509.Name, public: Any, serial: int) -> x509.CertificateBuilder:
            builder = x509.CertificateBuilder(name, subject, public, serial)
            return builder.not_valid_before(NOW).not_valid_after(NOW + year)

        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        authority = made(name, key.public_key(), 1).add_extension(x509.BasicConstraints(True, None), True)
        self.authority = authority.add_extension(usage, True).sign(key, hashes.SHA256())
        crl = x509.CertificateRevocationListBuilder(name, NOW, NOW + year)
        for serial in range(1, REVOKED + 1):
            crl = crl.add_revoked_certificate(x509.RevokedCertificateBuilder(serial + 2 * STRANGERS, NOW).build())
        self.crl = crl.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        self.clients = []
        for number in range(STRANGERS):
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"user-{number % USERS}")])
            leaf = made(subject, key.public_key(), number + 2).sign(key, hashes.SHA256())
            self.clients.append(leaf.public_bytes(serialization.Encoding.DER))


class Logins:
    """Logins of one listener: chain and rules, and certificates where clients show some."""

    def __init__(self, chain: Chain, sources: Sources, certificates: list[bytes]) -> None:
        loop: Any = broker_loop.BrokerLoop(SimpleNamespace(), 1, options.HotLimits(pacing_ns=0))
        self._chain = chain
        self._certificates = certificates
        self._rights = ClientRights(loop, RuleBook({"tls": sources}), EdgeLimits())
        self._policy = ListenerPolicy("tls", True)
        self._conn = loop.attach(-1, 0, options.ConnOptions(), 1)

    def us_a_login(self) -> float:
        """Return the thread's processor time of a login and its end, us."""
        began = time.thread_time_ns()
        moment = TimePoint(0.0, NOW.timestamp() + 60)
        for number in range(LOGINS):
            shown: Any = SimpleNamespace(tls=None)
            if self._certificates:
                der = self._certificates[number % len(self._certificates)]
                shown = SimpleNamespace(tls=SimpleNamespace(getpeercert=lambda _, der=der: der))
            credentials = Credentials("tls", "192.0.2.1", f"c{number}", certificate=shown_facts(shown))
            outcome = self._chain.begin(credentials, moment)
            assert isinstance(outcome, Admitted)
            client: Any = SimpleNamespace(
                conn=self._conn,
                policy=self._policy,
                client_id=f"c{number}",
                principal=outcome.principal,
                rights=None,
                bounds=None,
            )
            client.bounds = self._rights.bounds_of(client)
            self._rights.admit(client, 0.0, "192.0.2.1")
            self._rights.leave(client)
        return (time.thread_time_ns() - began) / LOGINS / 1_000


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    made = Certificates()
    lists = revocation_set([(Path("crl"), made.crl)], [made.authority], NOW.timestamp() + 60)
    acl = "".join(f"user user-{number}\ntopic readwrite plant/{number}/#\n" for number in range(USERS))
    table = make_role_table({"roles": {"device": {"publish": ["#"], "subscribe": ["#"]}}})
    off = Logins(Chain([], ChainRules(True), None, None), Sources(table, anonymous=("device",)), [])
    chain = Chain([CertificateStep(NameKind.CN)], ChainRules(False), lists, None)
    sources = Sources(acl=parse_acl_file(Path("acl"), acl.encode()))
    on, strangers = Logins(chain, sources, made.clients[:CLIENTS]), Logins(chain, sources, made.clients)
    times = [(off.us_a_login(), on.us_a_login(), strangers.us_a_login()) for _ in range(rounds + 1)][1:]
    without, with_all, first = (min(each) for each in zip(*times, strict=True))
    cost = with_all - without
    verdict = "ok" if cost <= BAR_US else "short"
    print(f"CONNECT {without:.1f} us without, {with_all:.1f} us with: {cost:.1f} us more   {BAR_US:g}: {verdict}")
    print(f"with a certificate that was not seen lately: {first - without:.1f} us more")


if __name__ == "__main__":
    main()
