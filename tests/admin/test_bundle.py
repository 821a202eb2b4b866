"""A support bundle contains no secret in any form, no name if pseudonyms are requested, and stays within its bound."""

import base64
import hashlib
import json
import re
import stat
import tarfile
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from admin.bundle.archive import ArchiveFile, write_archive
from admin.bundle.masking import Hider, own_words, secrets_of
from admin.doctor.host import ROOMS

ROOT = Path(__file__).parents[2]
PASSWORD = "correct horse-9"
ODD = 'zw#ölf "Hüte"/\\'  # each letter has another encoding in some form
KEY = bytes(range(7, 39))
TOKEN = "smq_" + base64.urlsafe_b64encode(bytes(range(100, 132))).decode().rstrip("=")


def shapes(secret: bytes) -> list[str]:
    """Return a secret in plain, in hex, URL-encoded, and in base64 alone and after other bytes."""
    whole = [base64.b64encode(before + secret + b"zz").decode() for before in (b"", b"a", b"ab")]
    urls = [quote(secret), quote_plus(secret), quote(secret, safe="")]
    urls += [re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), one) for one in urls]
    return [secret.decode("latin-1"), secret.hex(), secret.hex().upper(), *urls, *whole]


@pytest.mark.parametrize("secret", [PASSWORD.encode(), ODD.encode(), KEY, TOKEN.encode()])
def test_masking_known_secret_is_masked_in_every_form(secret: bytes) -> None:
    hider = Hider([secret])
    for shape in shapes(secret):
        if not shape.isprintable():
            continue
        for value in (shape, f"said '{shape}' to it", {"message": f"x {shape}"}, [{"fields": {"deep": shape}}]):
            shown = json.dumps(hider.hide(value))
            assert not any(text in shown for text in (shape[3:-4], secret.hex()[4:-4])), shape


def test_masking_finds_secrets_by_context() -> None:
    """Without a key file on this host: by a setting's name, a URL, PEM, tokens, long keys."""
    hider = Hider([])
    pem = "-----BEGIN PRIVATE KEY-----\nMIIE\nabc\n-----END PRIVATE KEY-----"
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln"
    row = {"name": "edge.listeners.x.http_password", "value": "hunter2"}
    assert hider.hide(row) == {**row, "value": "***"}
    text = (
        f"http://ann:hunter2@host/x {pem} {TOKEN} {jwt} Bearer abcdefgh123 {KEY.hex()} password=hunter2 secret: 's p'"
    )
    shown = hider.hide(text)
    for part in ("hunter2", "MIIE", TOKEN[8:], "c2ln", "abcdefgh123", KEY.hex()[8:], "s p"):
        assert part not in shown
    assert "http://***@host/x" in shown
    assert hider.hide(base64.b64encode(KEY).decode()) == "***" and hider.hide(b"payload") == "***"
    kept = "/var/lib/stratamq/storage/some-long-folder-name/of/a/node: 1795651385868 entries"
    assert hider.hide({"message": kept}) == {"message": kept}


@pytest.mark.parametrize(
    "text",
    [
        "GET /auth?sig=hunter2 HTTP/1.1",
        "/auth?a=1&apikey=hunter2",
        "http://h/in?hunter2",
        "http://h/in#hunter2",
        "s3a://key:hunter2@bucket/store",
        "password hunter2 in free text",
        "the secret hunter2",
        "--password hunter2 -v",
        "--token hunter2",
        "x-api-key: hunter2",
        '{"client_secret": "hunter2"}',
        "Bearer hunter2",
        "authorization: Basic hunter2",
        "Basic dTpodW50ZXIy",
        "$argon2id$v=19$m=65536,t=3,p=1$hunter2$dTpodW50ZXIy",
        "$6$hunter2$dTpodW50ZXIy",
        "$7$101$hunter2$dTpodW50ZXIy",
        "SCRAM-SHA-256$4096:hunter2$dTpodW50ZXIy:dTpodW50ZXIy",
    ],
)
def test_masking_finds_short_secrets_by_preceding_name(text: str) -> None:
    shown = Hider([]).hide({"message": text})["message"]
    assert "hunter2" not in shown and "dTpodW50ZXIy" not in shown and "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "$share/group/plant/# and $SYS/broker/clients",
        "the password file /etc/x has no secret; a token of role viewer",
        "the password is wrong; a secret of 32 bytes",
        "keys of tokens at https://h/keys: status 500; the former ones stay for 24 h",
        "basic settings of listener tls",
        "see https://h/path/to?",
    ],
)
def test_masking_keeps_sentences_about_secrets(text: str) -> None:
    assert Hider([]).hide({"message": text})["message"].rstrip("*") == text


def test_masking_keeps_secret_metadata() -> None:
    """The algorithm or a file's name helps the reader; the file's secrets are found by content."""
    hider = Hider([PASSWORD.encode()])
    for name, value in (
        ("edge.listeners.x.token_secret_algorithm", "HS256"),
        ("bridge.password_file", "/etc/stratamq/password"),
    ):
        row = {"name": name, "value": value}
        assert hider.hide(row) == row
        line = f"{name.rpartition('.')[2]} = {value}"
        assert hider.hide({"message": line}) == {"message": line}
    assert PASSWORD not in str(hider.hide({"name": "x.password_file", "value": PASSWORD}))
    assert hider.hide({"token_secret": "short", "psk_old": "ab"}) == {"token_secret": "***", "psk_old": "***"}


def test_secrets_of_returns_lines_and_decoded_lines(tmp_path: Path) -> None:
    file = tmp_path / "gossip.keys"
    file.write_bytes(base64.b64encode(KEY) + b"\nann:" + PASSWORD.encode() + b"\n")
    assert {KEY, base64.b64encode(KEY), PASSWORD.encode()} <= secrets_of([file, tmp_path / "missing"])


def test_pseudonyms_are_stable_within_one_bundle() -> None:
    words = own_words(ROOT, ROOMS)
    one, other = Hider([], words, ["edge-0"]), Hider([], words, ["edge-0"])
    row = {
        "node": "edge-0", "client_id": "pump-17", "topic": "plant/north/pump-17", "reason": "queue_full",
        "detail": "client pump-17 at 10.1.2.3:5555 on [fe80::1]:1 connected to edge-0 after 17 messages",
    }  # fmt: skip
    one.learn([row])
    other.learn([row])
    shown = one.hide(row)
    assert shown["node"] == "edge-0" and shown["reason"] == "queue_full"
    text = json.dumps(shown)
    assert not any(name in text for name in ("pump-17", "plant", "north", "10.1.2.3", "5555", "fe80"))
    assert shown["detail"].startswith(f"client {shown['client_id']} at ~") and "edge-0 after 17" in shown["detail"]
    assert one.hide(row) == shown and other.hide(row)["client_id"] != shown["client_id"]


def test_archive_is_private_and_has_hashes(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    parts = [
        ArchiveFile("map.json", [{"epoch": 7}], is_document=True),
        ArchiveFile("log/e1.jsonl", [{"n": 1}], may_lose=True),
    ]
    size = write_archive(path, parts, {"cluster": "c"})
    assert size == path.stat().st_size and stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        content = {name.removeprefix("support/"): file.read() for name, file in files.items() if file is not None}
    manifest = json.loads(content.pop("manifest.json"))
    assert {one["name"]: one["sha256"] for one in manifest["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in content.items()
    }
    with pytest.raises(FileExistsError):
        write_archive(path, parts, {})
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"]


def test_archive_leftover_of_killed_run_is_harmless(tmp_path: Path) -> None:
    """The incomplete file had the name of the existing bundle."""
    (tmp_path / "b.tar.gz.new").touch()
    write_archive(tmp_path / "b.tar.gz", [ArchiveFile("a.jsonl", [1])], {})
    with pytest.raises(FileExistsError):
        write_archive(tmp_path / "b.tar.gz", [ArchiveFile("a.jsonl", [1])], {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "b.tar.gz.new"]


def test_archive_too_large_removes_oldest_log_lines(tmp_path: Path) -> None:
    """The manifest counts them; a file that may not lose lines stays complete."""
    path = tmp_path / "a.tar.gz"
    text = hashlib.shake_256(b"x").hexdigest(50)
    lines = [{"n": n, "text": text} for n in range(300)]
    parts = [ArchiveFile("stats.jsonl", lines[:10]), ArchiveFile("log/a.jsonl", lines, may_lose=True),
             ArchiveFile("log/b.jsonl", lines[:5], may_lose=True)]  # fmt: skip
    assert write_archive(path, parts, {}, bytes_max=32_768) <= 32_768
    with tarfile.open(path) as archive:
        manifest = json.load(archive.extractfile("support/manifest.json") or pytest.fail())
        kept = (archive.extractfile("support/log/a.jsonl") or pytest.fail()).read().splitlines()
    assert set(manifest["left_out"]) == {"log/a.jsonl"} and manifest["left_out"]["log/a.jsonl"] + len(kept) == 300
    assert json.loads(kept[-1])["n"] == 299
