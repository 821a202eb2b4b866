"""Keys: files, descriptors, and the three steps of a rotation."""

import os
from pathlib import Path

import pytest

from membership.keyring import (
    KEYS_MAX,
    KeyExhausted,
    KeyRing,
    KeyRingError,
    generate_key,
    key_id,
    parse_key,
    read_key_descriptor,
    read_key_file,
    write_key_file,
)
from tests.membership.processes import encode_key

A, B, C = (bytes([number]) * 32 for number in range(3))


def test_key_file_round_trip(tmp_path: Path) -> None:
    """Written with mode 0600, read back in order."""
    path = tmp_path / "gossip.keys"
    write_key_file(path, [A, B])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_file(path) == [A, B]
    write_key_file(path, [B])
    assert read_key_file(path) == [B]
    assert [each.name for each in tmp_path.iterdir()] == ["gossip.keys"]


@pytest.mark.parametrize("mode", (0o640, 0o604, 0o660, 0o644, 0o610))
def test_read_key_file_refuses_files_open_to_other_users(tmp_path: Path, mode: int) -> None:
    """Only its owner may read or write it."""
    path = tmp_path / "gossip.keys"
    write_key_file(path, [A])
    path.chmod(mode)
    with pytest.raises(KeyRingError, match="0600"):
        read_key_file(path)


def test_read_key_file_refuses_links_pipes_and_folders(tmp_path: Path) -> None:
    """A pipe would block."""
    path = tmp_path / "gossip.keys"
    write_key_file(path, [A])
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        read_key_file(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyRingError, match="regular"):
        read_key_file(tmp_path / "pipe")
    with pytest.raises((KeyRingError, OSError)):
        read_key_file(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"# nothing\n", b"short\n", encode_key(A)[:-2].encode(), b"\xff\xfe", b"A" * 5000, b"AAAA\n" * 3],
)
def test_read_key_file_refuses_a_file_without_keys(tmp_path: Path, content: bytes) -> None:
    """The message does not repeat its content."""
    path = tmp_path / "gossip.keys"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyRingError) as caught:
        read_key_file(path)
    assert "AAAA" not in str(caught.value)


def test_read_key_descriptor_reads_to_the_end_and_closes() -> None:
    reading, writing = os.pipe()
    os.write(writing, (encode_key(A) + "\n").encode())
    os.close(writing)
    assert read_key_descriptor(reading) == [A]
    with pytest.raises(OSError):
        os.fstat(reading)


def test_parse_key() -> None:
    key = generate_key()
    assert parse_key(f"  {encode_key(key)}\n") == key
    with pytest.raises(KeyRingError, match="not 32"):
        parse_key("AAAA")


def test_key_ring_rotation_steps() -> None:
    """Install opens, use seals, remove forgets; each may be repeated."""
    ring = KeyRing([A])
    assert ring.install(B)
    assert not ring.install(B)
    assert ring.key_ids == (key_id(A), key_id(B))
    assert ring.use(key_id(B))
    assert not ring.use(key_id(B))
    assert ring.keys == [B, A]
    assert ring.remove(key_id(A))
    assert not ring.remove(key_id(A))
    assert ring.opening_cipher(key_id(A)) is None


def test_key_ring_refused_steps_change_no_state() -> None:
    """The sealing key stays, an unknown one does not seal, the ring is bounded."""
    ring = KeyRing([A])
    with pytest.raises(KeyRingError, match="seals"):
        ring.remove(key_id(A))
    with pytest.raises(KeyRingError, match="not installed"):
        ring.use(key_id(B))
    for number in range(1, KEYS_MAX):
        ring.install(bytes([100 + number]) * 32)
    with pytest.raises(KeyRingError, match="already"):
        ring.install(C)
    with pytest.raises(KeyRingError):
        ring.install(b"short")
    assert ring.keys[0] == A and len(ring.keys) == KEYS_MAX


def test_key_ring_bounds_the_seals_of_a_key() -> None:
    """NIST SP 800-38D section 8.3: random nonces allow 2**32 packets; warned at half, refused at the end."""
    ring = KeyRing([A], seals_max=8)
    for _ in range(2):
        ring.sealing_cipher()
    assert not ring.rotation_due(1)
    assert ring.rotation_due(2)
    for _ in range(6):
        ring.sealing_cipher()
    with pytest.raises(KeyExhausted):
        ring.sealing_cipher()
    ring.install(B)
    ring.use(key_id(B))
    ring.sealing_cipher()


def test_key_id_does_not_reveal_the_key() -> None:
    """Eight bytes of a labelled hash."""
    assert len({key_id(A), key_id(B), key_id(C)}) == 3
    assert len(key_id(A)) == 8 and key_id(A) != A[:8]
