"""The client's side of SCRAM-SHA-256, over a blocking client of MQTT 5."""

import base64
import hashlib
import hmac
from typing import NamedTuple

from mqtt.packets import Auth, Connack, Connect, Disconnect
from mqtt.properties import PropertyId
from tests.clients.blocking import BlockingClient

__all__ = ["METHOD", "NONCE", "Shown", "client_final", "client_first", "prove", "read_challenge"]

METHOD: dict[int, object] = {PropertyId.AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
NONCE = "fyko+d2lbbFgONRv9qkxdawL"


class Shown(NamedTuple):
    """The server's answers: its salt and iterations for a name, and the final code."""

    salt: bytes
    iterations: int
    code: int
    final: bytes


def client_first(user: str) -> bytes:
    return f"n,,n={user},r={NONCE}".encode()


def read_challenge(data: bytes) -> tuple[str, bytes, int]:
    """Return the nonce, salt and iterations of the server's first message."""
    nonce, salt, iterations = (part[2:] for part in data.decode().split(","))
    return nonce, base64.b64decode(salt), int(iterations)


def client_final(user: str, password: str, data: bytes) -> bytes:
    """Return the proof that answers the server's first message."""
    nonce, salt, iterations = read_challenge(data)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c=biws,r={nonce}"
    signed = ",".join((client_first(user).decode()[3:], data.decode(), bare)).encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(one ^ two for one, two in zip(key, signature, strict=True)))
    return f"{bare},p={proof.decode()}".encode()


def prove(client: BlockingClient, client_id: str, user: str, password: str) -> Shown:
    """Log in; return the server's answers."""
    first = {**METHOD, PropertyId.AUTHENTICATION_DATA: client_first(user)}
    client.send(Connect(client_id, properties=first, protocol_version=5))
    auth = client.read()
    assert isinstance(auth, Auth), auth
    data = auth.properties[PropertyId.AUTHENTICATION_DATA]
    assert isinstance(data, bytes)
    _, salt, iterations = read_challenge(data)
    client.send(Auth(0x18, {**METHOD, PropertyId.AUTHENTICATION_DATA: client_final(user, password, data)}))
    answer = client.read()
    assert isinstance(answer, Connack | Disconnect), answer
    final = answer.properties.get(PropertyId.AUTHENTICATION_DATA, b"")
    assert isinstance(final, bytes)
    return Shown(salt, iterations, int(answer.reason_code), final)
