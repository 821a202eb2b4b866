"""Valid messages of every type, with small values that fit a small cluster: the seeds of mutation."""

import types
import typing
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from wire.messages.connects import ConnectAnswer, ConnectRequest
from wire.messages.control import Control, join_controls
from wire.messages.sessions import KickSession

__all__ = ["CONNECTS", "CONNECT_ANSWERS", "CONTROLS", "good"]

# Names as the small clusters of the core targets have them; every list has two elements.
BY_NAME: dict[str, Any] = {
    "node": "e1",
    "edge": "e1",
    "leader": "r1",
    "tier": "edge",
    "topic": "a/b",
    "topic_filter": "a/#",
    "share": "g/a/#",
    "share_name": "g",
    "client_id": "c1",
    "what": "partition",
    "verb": "cluster status",
    "state": "active",
    "code": "invalid",
    "cluster": "c",
    "prefix": "a",
    "partition": 0,
    "shard": 0,
    "qos": 1,
    "lease_s": 2.0,
    "protocol_version": 5,
    "arguments": {"partition": 0, "node": "s1"},
    "message": b"",
    "address": "h:1",
}


def good(kind: Any, name: str = "", number: int = 1) -> Any:
    """Return a value of a type as plain data; ``number`` is used for every count."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if name in BY_NAME:
        value = BY_NAME[name]
        if kind is bytes and isinstance(value, str):
            return value.encode()
        if isinstance(kind, type) and isinstance(value, kind):
            return value
        if get_origin(kind) is dict:
            return value
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        return good(kinds[0], name, number)
    if origin is list or (origin is tuple and get_args(kind)[1:] == (...,)):
        return [good(get_args(kind)[0], name, number), good(get_args(kind)[0], name, number + 1)]
    if origin is tuple:
        return [good(one, name, number) for one in get_args(kind)]
    if origin is dict:
        of_key, of_value = get_args(kind)
        return {good(of_key, "", number): good(of_value, "", number)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, number)
    plain = {int: number, str: "s1", bytes: b"x", bool: bool(number % 2), float: 100.0}
    return plain.get(kind)


def _struct(kind: type[msgspec.Struct], number: int) -> Any:
    hints = get_type_hints(kind, include_extras=True)
    values = {name: good(hints[name], name, number) for name in kind.__struct_fields__}
    tag = kind.__struct_config__.tag
    if kind.__struct_config__.array_like:
        return [*([tag] if tag else []), *values.values()]
    return {**({kind.__struct_config__.tag_field: tag} if tag else {}), **values}


def _controls() -> tuple[bytes, ...]:
    found = []
    for kind in get_args(Control):
        for number in (1, 2):
            plain = good(kind, "", number)
            if kind.__name__ in ("Relay", "Relayed"):
                plain["message"] = msgspec.msgpack.encode(good(KickSession, "", number))
            found.append(msgspec.msgpack.encode(plain))
    return tuple(found)


CONTROLS = _controls()


def _records(union: Any) -> tuple[bytes, ...]:
    """Return frames with one record of each kind and number, and one frame with all."""
    found = [msgspec.msgpack.encode(good(kind, "", number)) for kind in get_args(union) for number in (1, 2)]
    return (*(join_controls([one]) for one in found), join_controls(found))


CONNECTS, CONNECT_ANSWERS = _records(ConnectRequest), _records(ConnectAnswer)
