"""A support bundle of a real cluster in which secrets and payloads were planted wherever they may come."""

import base64
import hashlib
import json
import re
import tarfile
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.clients.blocking import BlockingClient
from tests.clients.paho_client import PahoClient
from tests.e2e.operated_cluster import operated_cluster

pytestmark = pytest.mark.slow

PASSWORD = 'zw#lf "Planted"/9'
PAYLOAD = "planted payload of 31 characters!"
MIB = 1024 * 1024


def forms(secret: bytes) -> set[str]:
    """Return pieces of a secret in each form that a bundle might have it in."""
    found = {secret.decode("latin-1"), secret.hex(), secret.hex().upper(), quote(secret), quote_plus(secret)}
    found |= {quote(secret, safe=""), json.dumps(secret.decode("latin-1"))[1:-1], repr(secret)[2:-1]}
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(b"x" * shift + secret).decode()[4:-6])
    return {one[2:-2] for one in found}


def test_bundle_contains_no_planted_secret(tmp_path: Path) -> None:
    """Passwords, keys, tokens and payloads in no form; the manifest's hashes are those of the files."""
    with operated_cluster("--edges", "1", "--admin-port", "0") as here:
        data, port = here.cluster.data, here.cluster.port(0, "plain")
        token = str(here.cluster.admin("token", "create", "planted", "--role", "operator")["token"])
        (data / "planted-password").write_text(PASSWORD + "\n")
        (data / "planted-password").chmod(0o600)
        added = here.run("user", "add", "ann", "--password-file", str(data / "planted-password"))
        assert added[0] == 0, added[2]
        here.cluster.admin("trace", "start", "topic", "plant/#", "--name", "planted", "--payload", "head:64")
        client = PahoClient(port, "pump-17", expiry_s=600)
        client.subscribe("plant/#", 1)
        client.publish("$SYS/plant/refused", PAYLOAD, 1)  # the journal names both
        client.close()
        here.cluster.admin("msg", "send", "plant/kept", PAYLOAD, "--retain")
        stranger = BlockingClient(port)
        stranger.connect("stranger", username="ann", password=PASSWORD.encode())
        stranger.close()
        keys = {path: path.read_bytes() for path in data.rglob("*") if path.suffix == ".key" or "keys" in path.name}
        wholes = []
        for number, flags in enumerate(([], ["--pseudonyms"])):
            path = tmp_path / f"{number}.tar.gz"
            code, _, errors = here.run("support", "bundle", "--over", "1", "--to", str(path), *flags)
            assert code == 0, errors
            assert path.stat().st_size <= 64 * MIB
            with tarfile.open(path) as archive:
                members = [member for member in archive.getmembers() if member.isfile()]
                files = {one.name: (archive.extractfile(one) or pytest.fail()).read() for one in members}
            manifest = json.loads(files["support/manifest.json"])
            assert {f"support/{row['name']}": row["sha256"] for row in manifest["files"]} == {
                name: hashlib.sha256(content).hexdigest()
                for name, content in files.items()
                if name != "support/manifest.json"
            }
            wholes.append(b"\n".join(files.values()).decode())
    planted = {"password": PASSWORD.encode(), "token": token.encode(), "payload": PAYLOAD.encode()}
    for path, text in keys.items():
        body = b"".join(line for line in text.splitlines() if line and not line.startswith(b"-----"))
        planted[path.name] = re.sub(rb"[^A-Za-z0-9+/=]", b"", body)[:44]
        assert len(planted[path.name]) > 20, path
    assert len(planted) >= 5, planted.keys()
    for name, secret in planted.items():
        for whole in wholes:
            assert not [form for form in forms(secret) if form in whole], name
    shown, hashed = wholes
    for name in ("pump-17", "plant/"):
        assert name in shown and name not in hashed, name
