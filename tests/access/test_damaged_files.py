"""Every kind of file that controls access, with every kind of damage.

A damaged file is refused by one line that names it, at once and without much memory. Otherwise it grants no more than
its complete lines, and never more than the undamaged file.
"""

import base64
import datetime
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from access.files import read_access_file
from access.identity.key_set import read_jwks
from access.identity.password_file import read_password_file
from access.identity.revocation import read_authorities, read_crl_files
from access.identity.scram import load_users, user_line
from access.rules.acl_file import read_acl_file
from access.rules.role_table import read_role_table
from conf.errors import UserError
from conf.settings import EdgeConfig, ListenerSettings
from edge.login.bounded_http import tls_context
from edge.login.listener_chain import shared_secret
from edge.login.token_settings import token_step
from gateways.datagrams.keys import read_key, read_keys
from membership.keyring import KeyRingError, generate_key, read_key_file
from stratamq.packages import load_config
from tests.access.identity.test_passwords import KNOWN
from tests.wire.revocation_lists import revocation_list
from wire.links.authority import DevelopmentAuthority
from wire.links.tls import CertificateFiles, check_certificate, client_listener_context, link_contexts

NOW = datetime.datetime.now(datetime.UTC)
HASH = KNOWN["sha512"][0]
PASSWORD = "hunter2-7c1e"
SECRET = b"\x81~\xf4\r\xc3\x9a5\x1b\x00\n\xe7$k\xb0\x12\x94\xfd\x08:v\xd5\xa1`\xce\x0fU\x99/\xb8\x1ezC"  # 32 bytes
GIB = 1 << 30
SECONDS_MAX = 2.0
RESIDENT_MAX = 64 * 1024 * 1024


class Kind:
    """One kind of file: its content, its reader, and the result of reading.

    Args:
        content: Realistic content.
        read: Returns the content of the file as a set of texts.
        unknown: A line without meaning.
        takes: The file removes rights (a revocation list): a damaged one must not remove fewer.
    """

    def __init__(
        self,
        content: bytes,
        read: Callable[[Path], Any],
        *,
        unknown: bytes = b"nonsense\n",
        takes: bool = False,
    ) -> None:
        self.content, self.unknown, self.takes = content, unknown, takes
        self._read = read

    def read(self, path: Path) -> set[str]:
        found = self._read(path)
        return {str(one) for one in (found.items() if hasattr(found, "items") else found)}


def _pem(public: bool = True) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    if public:
        return key.public_key().public_bytes(encoding, form)
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _jwks() -> bytes:
    key = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    return json.dumps({"keys": [{**key, "kid": "one"}]}).encode()


def _acl(path: Path) -> list[str]:
    read = read_acl_file(path)
    return [f"{user} {rule}" for user, tier in read.users.items() for rule in tier] + [str(read.anonymous)]


def _roles(path: Path) -> list[str]:
    table = read_role_table(path)
    return [f"{name} {rule}" for name in ("reader", "writer", "x") for tier in table.tiers((name,)) for rule in tier]


def _kids(path: Path) -> list[str]:
    return [key.kid for key in read_jwks(read_access_file(path, 65_536))]


def _doors(path: Path) -> list[str]:
    config = load_config("edge", path, (), {})
    assert isinstance(config, EdgeConfig)
    return [f"{one.name} {one.bind} {one.tls} {one.allow_anonymous}" for one in config.edge.listeners]


FILES: dict[str, Kind] = {}


@pytest.fixture(scope="module", autouse=True)
def kinds(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Create the undamaged files."""
    folder = tmp_path_factory.mktemp("authority")
    authority = DevelopmentAuthority(folder, "test", NOW)
    node, shown = authority.node("edge", "edge-0"), authority.server()
    lost = authority.client("lost")
    trusted = read_authorities(authority.certificate)
    utc = NOW.timestamp() + 1.0
    pair = ["pair"]

    def listener(certificate: Path, key: Path, authority: Path) -> list[str]:
        client_listener_context(certificate, key, authority, True)
        return pair

    def token(**keys: object) -> list[str]:
        token_step(ListenerSettings(name="l", port=0, tls=False, **keys), None)  # type: ignore[arg-type]
        return pair

    def callout(path: Path) -> list[str]:
        return [str(one["subject"]) for one in tls_context(path).get_ca_certs()]

    def shown_to_callout(certificate: Path, key: Path) -> list[str]:
        tls_context(None, (certificate, key))
        return pair

    def node_certificate(path: Path) -> list[str]:
        files = CertificateFiles(path, node.key, node.authority)
        check_certificate(files, ("test", "edge", "edge-0"), datetime.datetime.now(datetime.UTC))
        link_contexts(files)
        return pair

    FILES.update(
        {
            "passwords": Kind(f"alice:{HASH}\nbob:{HASH}\n".encode(), read_password_file),
            "acl": Kind(b"user alice\ntopic read a/#\nuser bob\ntopic write b/#\n", _acl),
            "roles": Kind(
                b'[roles.reader]\nsubscribe = ["a/#"]\n\n[roles.writer]\npublish = ["b/#"]\n',
                _roles,
                unknown=b'\n[roles.x]\npublsh = ["#"]\n',
            ),
            "scram users": Kind(
                "".join(user_line(name, PASSWORD, b"salt" * 4) + "\n" for name in ("alice", "bob")).encode(), load_users
            ),
            "authorities": Kind(authority.certificate.read_bytes(), read_authorities),
            "crl": Kind(
                revocation_list(folder, [lost.certificate]),
                lambda path: [f"{read_crl_files([path], trusted, utc).revoked} revoked"],
                takes=True,
            ),
            "token key": Kind(_pem(), lambda path: token(token_keys=(path,))),
            "token secret": Kind(PASSWORD.encode() * 4 + b"\n", lambda path: token(token_secret=path), takes=True),
            "authority of a callout": Kind(authority.certificate.read_bytes(), callout),
            "certificate shown to a callout": Kind(
                lost.certificate.read_bytes(), lambda path: shown_to_callout(path, lost.key)
            ),
            "key of a callout": Kind(lost.key.read_bytes(), lambda path: shown_to_callout(lost.certificate, path)),
            "scram secret": Kind(SECRET, lambda path: [shared_secret(path) and "a secret"], takes=True),
            "jwks": Kind(_jwks(), _kids, unknown=b"}"),
            "keys of devices": Kind(f"pump {'1f' * 32}\nlamp {'2e' * 32}\n".encode(), read_keys),
            "key of a device": Kind(b"1f" * 32 + b"\n", lambda path: [read_key(path).hex()]),
            "gossip keys": Kind(f"{base64.b64encode(generate_key()).decode()}\n".encode(), read_key_file),
            "certificate of a listener": Kind(
                shown.certificate.read_bytes(), lambda path: listener(path, shown.key, shown.authority)
            ),
            "key of a listener": Kind(
                shown.key.read_bytes(), lambda path: listener(shown.certificate, path, shown.authority)
            ),
            "authority of clients": Kind(
                authority.certificate.read_bytes(), lambda path: listener(shown.certificate, shown.key, path)
            ),
            "certificate of a node": Kind(node.certificate.read_bytes(), node_certificate),
            "settings": Kind(
                b'[node]\nid = "edge-0"\n[edge.listeners.a]\nport = 1883\ntls = false\nallow_anonymous = true\n',
                _doors,
                unknown=b"unheard_of = 1\n",
            ),
        }
    )


# Damaged content, or a factory of something other than a file.
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "CRLF": lambda whole: whole.replace(b"\n", b"\r\n"),
    "CR": lambda whole: whole.replace(b"\n", b"\r"),
    "CR behind the last line": lambda whole: whole.rstrip(b"\n") + b"\r",
    "one line that ends in CR": lambda whole: whole.split(b"\n")[0] + b"\r",
    "NUL behind it": lambda whole: whole + b"\0",
    "NUL in it": lambda whole: whole[:20] + b"\0" + whole[20:],
    "byte order mark": lambda whole: b"\xef\xbb\xbf" + whole,
    "UTF-16": lambda whole: whole.decode("latin-1").encode("utf-16"),
    "doubled": lambda whole: whole * 2,
    "zeros": lambda _: bytes(4096),
    "many comments": lambda _: b"# nothing here yet\n" * 20,
    "noise": lambda _: bytes(range(256)) * 64,
    "deep": lambda _: b"x = " + b"[" * 100_000,
    "a long line": lambda whole: whole + b"x" * 1_000_000 + b"\n",
}
TEXTS = {"passwords", "acl", "scram users", "keys of devices"}
SECRETS = {"token secret", "scram secret"}
BY_OPENSSL = {
    "authority of a callout",
    "certificate shown to a callout",
    "key of a callout",
    "certificate of a listener",
    "key of a listener",
    "authority of clients",
    "certificate of a node",
}
PEMS = BY_OPENSSL | {"authorities", "crl", "token key"}
# Accepted combinations, as in the table of docs/security_checks.md; any bytes are a valid, different secret.
TAKEN: dict[str, frozenset[str] | set[str]] = {
    "CRLF": TEXTS | SECRETS | PEMS | {"roles", "settings", "jwks", "gossip keys", "key of a device"},
    "CR": SECRETS | (PEMS - BY_OPENSSL) | {"jwks", "gossip keys"},
    "CR behind the last line": SECRETS | PEMS | {"jwks", "gossip keys"},
    "one line that ends in CR": {"token secret", "jwks", "gossip keys"},
    "NUL in it": SECRETS,
    "NUL behind it": SECRETS | PEMS,
    "byte order mark": SECRETS | PEMS,
    "UTF-16": SECRETS,
    "doubled": SECRETS | PEMS | {"gossip keys"},
    "unknown words": SECRETS | PEMS,
    "cut in the middle": TEXTS | {"roles"},
    **dict.fromkeys(("missing", "unreadable", "a folder", "a pipe", "a gibibyte", "deep", "zeros"), frozenset()),
    **dict.fromkeys(("empty", "comments only", "many comments"), frozenset({"settings"})),
}
NOTHING = ("empty", "zeros", "comments only", "many comments")
OTHERS = ("missing", "unreadable", "a folder", "a pipe", "a gibibyte", "comments only", "unknown words")


def place(path: Path, kind: Kind, damage: str) -> None:
    """Create a damaged file."""
    if damage in BYTES:
        path.write_bytes(BYTES[damage](kind.content))
    elif damage == "a folder":
        path.mkdir()
    elif damage == "unreadable":  # root can read files of any mode
        path.symlink_to(path.name)
    elif damage == "a pipe":
        os.mkfifo(path, 0o600)
    elif damage == "a gibibyte":
        path.write_bytes(kind.content)
        os.truncate(path, GIB)
    elif damage == "comments only":
        path.write_bytes(b"# nothing\n" * 3)
    elif damage == "unknown words":
        path.write_bytes(kind.content + kind.unknown)
    if path.is_file():
        path.chmod(0o600)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("damage", [*BYTES, *OTHERS])
def test_a_damaged_file(tmp_path: Path, damage: str) -> None:
    """Each kind of file: refused by one line, or grants no more than the undamaged file."""
    lenient: set[str] = set()
    for name, kind in FILES.items():
        whole, path = tmp_path / f"{name}.whole", tmp_path / name
        whole.write_bytes(kind.content)
        whole.chmod(0o600)
        granted = kind.read(whole)
        assert granted, name
        place(path, kind, damage)
        before, began = resident(), time.thread_time()
        try:
            found = kind.read(path)
        except (UserError, KeyRingError, OSError, ValueError) as error:
            message = error.message if isinstance(error, UserError) else str(error)
            assert "\n" not in message.strip() and message.isprintable() and len(message) < 600, (name, message)
            assert str(path) in message or name == "jwks", (name, message)  # that one comes from an address
            assert PASSWORD not in message and HASH[5:20] not in message, name
        else:
            assert damage not in NOTHING or name == "settings", name  # those have defaults, which admit no client
            assert found >= granted if kind.takes else found <= granted, (name, found)
            lenient.add(name)
        assert time.thread_time() - began < SECONDS_MAX, name
        assert resident() - before < RESIDENT_MAX, name
    assert lenient == TAKEN.get(damage, lenient), damage
