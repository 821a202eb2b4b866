"""Password records against known answers, and parameters that would cost too much (check A1)."""

import base64
import hashlib

import pytest

from access.identity.passwords import HashJob, encode_record, has_argon2, make_record, parse_record, verify

SALT12, SALT64, HASH64 = (base64.b64encode(bytes(size)).decode() for size in (12, 64, 64))
# PBKDF2-HMAC-SHA512, a published vector in addition to RFC 6070; argon2id, from its reference tests.
PBKDF2 = bytes.fromhex(
    "8c0511f4c6e597c6ac6315d8f0362e225f3c501495ba23b868c005174dc4ee71"
    "115b59f9e60cd9532fa33e0f75aefe30225c583a186cd82bd4daea9724a3d3b8"
)
KNOWN = {
    "argon2id": ("$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", b"password"),
    "argon2id p=2": (
        "$argon2id$v=19$m=256,t=2,p=2$c29tZXNhbHQ$bQk8UB/VmZZF4Oo79iDXuL5/0ttZwg2f/5U52iv1cDc",
        b"password",
    ),
    "pbkdf2": (
        "$7$4096$"
        + base64.b64encode(b"saltSALTsaltSALTsaltSALTsaltSALTsalt").decode()
        + "$"
        + base64.b64encode(PBKDF2).decode(),
        b"passwordPASSWORDpassword",
    ),
    "sha512": ("$6$" + SALT12 + "$" + base64.b64encode(hashlib.sha512(b"abc" + bytes(12)).digest()).decode(), b"abc"),
    "sha512, long salt": (
        "$6$" + SALT64 + "$" + base64.b64encode(hashlib.sha512(b"abc" + bytes(64)).digest()).decode(),
        b"abc",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(name: str) -> None:
    """The published password matches, others do not, and the record round-trips."""
    text, password = KNOWN[name]
    record = parse_record(text)
    assert HashJob("u", record, password).run()
    for wrong in (b"", password + b"\0", password[:-1], b"\xff" * 65_535):
        assert not verify(record, wrong)
    assert encode_record(record) == text


def test_our_own_records() -> None:
    """Argon2id with 19 MiB and 2 passes; another salt gives another record."""
    assert has_argon2()
    record = make_record("pässword".encode(), bytes(range(16)))
    text = encode_record(record)
    assert text.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert parse_record(text) == record
    assert verify(record, "pässword".encode()) and not verify(record, b"password")
    assert text not in repr(record) and "salt" not in repr(record)


def test_verify_empty_password_never_matches() -> None:
    """Not even for its own record."""
    empty = "$6$" + SALT12 + "$" + base64.b64encode(hashlib.sha512(bytes(12)).digest()).decode()
    assert not verify(parse_record(empty), b"")


ARGON = "$argon2id$v=19$m={},t={},p={}${}${}"
SALT, HASH = "c29tZXNhbHQ", "nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "$",
        "$1$abc$def",
        "$5$" + SALT12 + "$" + HASH64,
        f"$6${SALT12}",
        f"$6${SALT12}${HASH64}$",
        f"$6${SALT12}${HASH64} ",
        f"$6${SALT12}\n${HASH64}",
        f"$6$$${HASH64}",
        f"$6${SALT12}${SALT12}",
        f"$6$AAAA${HASH64}",
        f"$6${base64.b64encode(bytes(65)).decode()}${HASH64}",
        f"$7$0${SALT12}${HASH64}",
        f"$7$-1${SALT12}${HASH64}",
        f"$7$1_000${SALT12}${HASH64}",
        f"$7$+101${SALT12}${HASH64}",
        f"$7$٣${SALT12}${HASH64}",
        f"$7$10000001${SALT12}${HASH64}",
        f"$7${'9' * 100}${SALT12}${HASH64}",
        f"$7$101${SALT12}$",
        ARGON.format(262_145, 1, 1, SALT, HASH),
        ARGON.format(100_000_000, 1, 1, SALT, HASH),
        ARGON.format(256, 65, 1, SALT, HASH),
        ARGON.format(256, 1, 17, SALT, HASH),
        ARGON.format(262_144, 5, 1, SALT, HASH),
        ARGON.format(15, 1, 2, SALT, HASH),
        ARGON.format(0, 1, 1, SALT, HASH),
        ARGON.format(256, 0, 1, SALT, HASH),
        ARGON.format(256, 1, 0, SALT, HASH),
        ARGON.format(256, 1, 1, "c29t", HASH),
        ARGON.format(256, 1, 1, SALT, "c29tZXNhbHQ"),
        ARGON.format(256, 1, 1, SALT, HASH + "="),
        ARGON.format(256, 1, 1, SALT, HASH).replace("v=19", "v=16"),
        ARGON.format(256, 1, 1, SALT, HASH).replace("argon2id", "argon2i"),
        ARGON.format(256, 1, 1, SALT, HASH) + ",keyid=x",
        "$argon2id$v=19$m=256,t=1,p=1$" + "A" * 600,
    ],
)
def test_records_that_are_refused(text: str) -> None:
    """Parameters that need 100 GB, no salt, no hash, another format; no hash is computed."""
    with pytest.raises(ValueError) as error:
        parse_record(text)
    assert "\n" not in str(error.value)
    assert HASH not in str(error.value) and HASH64 not in str(error.value)
