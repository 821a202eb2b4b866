"""SCRAM-SHA-256: the vector of RFC 7677, refusals, and the file of users."""

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from access.identity.scram import Scram, ScramUser, load_users, make_user, saslprep, user_line
from conf.errors import UserError

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
CLIENT_FINAL = (f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").encode()


def method() -> Scram:
    return Scram({"user": make_user("pencil", SALT)}, lambda: SERVER_NONCE, b"secret")


def proof(password: str, user: ScramUser, first_bare: str, server_first: str, without_proof: str) -> str:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), user.salt, user.iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"{first_bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    return base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()


def test_vector_of_rfc_7677_section_3() -> None:
    """The messages of the RFC's example, byte for byte."""
    exchange = method().begin()
    first = exchange.receive(CLIENT_FIRST)
    assert first.data.decode() == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert (first.identity, first.refused) == ("", False)
    final = exchange.receive(CLIENT_FINAL)
    assert final.data == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (final.identity, final.refused) == ("user", False)


def test_finished_exchange_accepts_no_message() -> None:
    """A second client-final, even the correct one, starts no session."""
    exchange = method().begin()
    exchange.receive(CLIENT_FIRST)
    assert exchange.receive(CLIENT_FINAL).identity
    assert exchange.receive(CLIENT_FINAL).refused


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"p=tls-unique,,n=user,r=abc",  # channel binding was never offered
        b"n,a=admin,n=user,r=abc",  # an authorization identity
        b"n,,m=ext,n=user,r=abc",  # mandatory extension
        b"n,,n=us=er,r=abc",  # an invalid escape
        b"n,,n=user,r=",
        b"n,,n=user",
        b"n,,n=\xff,r=abc",
        b"n,,n=user,r=" + b"a" * 5000,
        b"n,,n=\x00,r=abc",
    ],
)
def test_malformed_client_first_is_refused(first: bytes) -> None:
    """Only the plain form of RFC 5802 section 7 starts an exchange."""
    assert method().begin().receive(first).refused


@pytest.mark.parametrize(
    "final",
    [
        CLIENT_FINAL.replace(b"dHzb", b"dHzc"),
        CLIENT_FINAL.replace(b"biws", b"eSws"),  # another binding than in client-first
        CLIENT_FINAL.replace(b"hvYD", b"hvYE"),  # another nonce
        b"c=biws,r=x",
        CLIENT_FINAL[:-4],
        b"",
    ],
)
def test_wrong_client_final_is_refused(final: bytes) -> None:
    """A wrong proof, nonce or binding ends the exchange without a hint which."""
    exchange = method().begin()
    exchange.receive(CLIENT_FIRST)
    answer = exchange.receive(final)
    assert answer.refused and not answer.data


def test_unknown_user_gets_a_constant_salt_and_is_refused_at_the_end() -> None:
    """An unknown name is indistinguishable from a known one until the proof."""
    scram = method()
    exchanges = [scram.begin(), scram.begin()]
    firsts = [exchange.receive(b"n,,n=nobody,r=abc").data.decode() for exchange in exchanges]
    assert firsts[0] == firsts[1] and ",i=4096" in firsts[0]
    user, known = scram.lookup("nobody")
    assert not known
    without_proof = f"c=biws,r=abc{SERVER_NONCE}"
    for password in ("", "pencil"):
        made = proof(password, user, "n=nobody,r=abc", firsts[0], without_proof)
        exchange = scram.begin()
        exchange.receive(b"n,,n=nobody,r=abc")
        assert exchange.receive(f"{without_proof},p={made}".encode()).refused


def test_names_are_prepared_and_unescaped() -> None:
    """``=2C`` and ``=3D`` encode comma and equals sign, and RFC 4013 normalizes equivalent names."""
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("\u00aa") == "a"
    assert saslprep("\u2168") == "IX"
    for wrong in ("\u0007", "\u06271"):
        with pytest.raises(ValueError, match=r"forbidden|mixed"):
            saslprep(wrong)
    scram = Scram({"a,b=c": make_user("p", SALT)}, lambda: "S", b"secret")
    exchange = scram.begin()
    first = exchange.receive(b"n,,n=a=2Cb=3Dc,r=abc").data.decode()
    made = proof("p", make_user("p", SALT), "n=a=2Cb=3Dc,r=abc", first, "c=biws,r=abcS")
    assert exchange.receive(f"c=biws,r=abcS,p={made}".encode()).identity == "a,b=c"


def test_user_file_round_trip(tmp_path: Path) -> None:
    """A line of ``user_line`` admits its user."""
    path = tmp_path / "users"
    path.write_text("# users\n" + user_line("user", "pencil", SALT) + "\n")
    path.chmod(0o600)
    assert load_users(path) == {"user": make_user("pencil", SALT)}


@pytest.mark.parametrize(
    "line",
    [
        "user",
        "user:x:AAAA:AAAA:AAAA",
        "user:4096:AAAA:AAAA:AAAA",
        "user:1:" + user_line("user", "p", SALT).split(":", 2)[2],
        "\n".join([user_line("user", "p", SALT)] * 2),
    ],
)
def test_malformed_user_file_error_has_the_line(tmp_path: Path, line: str) -> None:
    """Short keys, too few iterations, repeated names: the error has the line's number."""
    path = tmp_path / "users"
    path.write_text(line + "\n")
    path.chmod(0o600)
    with pytest.raises(UserError, match=r"users:\d+: expected"):
        load_users(path)


def test_world_readable_user_file_is_refused(tmp_path: Path) -> None:
    """Keys are secrets: mode 0600, as with private keys."""
    path = tmp_path / "users"
    path.write_text("")
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        load_users(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_users(tmp_path / "missing")


@pytest.mark.parametrize("name", ["", "a:b", "a\x00"])
def test_invalid_user_names(name: str) -> None:
    """A name that cannot be encoded in a line is refused."""
    with pytest.raises(ValueError, match=r"user name|forbidden"):
        user_line(name, "p", SALT)
