"""The audit as text: JSON lines, each with the SHA-256 of the one before, so that no line can be changed or taken out.

A line ends in ``sum``, the hash of all of the line before it, and has in ``prev`` the ``sum`` of the line before. A
change, a gap or another order is found at its line. Nobody can see from a file alone that its last lines were cut off,
or that all of it was written anew: compare ``sum`` of the last line with one that was kept elsewhere.

What a stranger wrote (names, client IDs) is cut to 256 characters, and every character outside of printable ASCII is
escaped, so that no text can end a line or move a terminal's cursor. Passwords, records, tokens, keys and payloads have
no field.
"""

import hashlib
import json
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = [
    "GENESIS",
    "LINE_BYTES_MAX",
    "AuditRecord",
    "ChainCheck",
    "Head",
    "Scalar",
    "head_of",
    "make_line",
    "tail",
    "verify",
]

TEXT_MAX = 256  # characters of one value, each at most 12 bytes of its line
ARGUMENTS_MAX = 32
LINE_BYTES_MAX = 256 * 1024  # a longer line is none of ours: values are cut when it is made
SEQUENCE_MAX = 1 << 62
SUM_HEX = 64
_TAIL = len(',"sum":""}') + SUM_HEX

Scalar = str | int | float | bool


class AuditRecord(msgspec.Struct, frozen=True):
    """One thing that happened. Texts may be a stranger's; ``arguments`` are those that are no secret."""

    kind: str  # "verb", "login", "publish", "subscribe", "will", "kick", "order", "reload", "start",
    # "gap"
    outcome: str  # "done", "partial" (not in force everywhere), "refused", "failed"
    actor: str = ""  # operator or user
    role: str = ""
    serial: str = ""  # of the certificate
    address: str = ""
    client_id: str = ""
    verb: str = ""
    arguments: dict[str, Scalar] = {}
    reason: str = ""  # why it was refused
    epoch: int = 0  # policy_epoch that it was judged by, or made
    count: int = 1  # that many of the same since the last line about it


class Head(msgspec.Struct, frozen=True):
    """End of a chain: number and sum of its last line."""

    sequence: int
    sum: str


GENESIS = Head(0, "0" * SUM_HEX)


class ChainCheck(msgspec.Struct, frozen=True):
    """Result of a check: lines that were whole, the end of the chain, and the first break, if there is one."""

    lines: int
    head: Head
    began: int  # sequence of the first line: above 1 if older files are not here
    broken_line: int = 0  # of the file, from 1; 0: none is broken
    broken: str = ""


def make_line(record: AuditRecord, utc: float, head: Head) -> tuple[bytes, Head]:
    """Return the line of a record, with its end of line, and the chain's new end. Never raises."""
    sequence = head.sequence + 1
    body: dict[str, Any] = {"seq": sequence, "utc": round(utc, 6) if math.isfinite(utc) else 0.0, "prev": head.sum}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "arguments":
            value = {_cut(str(key)): _scalar(each) for key, each in list(value.items())[:ARGUMENTS_MAX]}
        if value or name in ("kind", "outcome"):
            body[name] = value if name == "arguments" else _scalar(value)
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    begin = text[:-1].encode("ascii")
    total = hashlib.sha256(begin).hexdigest()
    return begin + b',"sum":"' + total.encode("ascii") + b'"}\n', Head(sequence, total)


def head_of(line: bytes) -> Head:
    """Return the end of a chain whose last line this is.

    Raises:
        ValueError: It is no whole line of an audit; says why.
    """
    return _read(line)[0]


def verify(lines: Iterable[bytes], after: Head | None = None) -> ChainCheck:
    """Check the lines of one file, each with its end of line; stops at the first break. Never raises.

    Args:
        after: End of the file before; None: this file may begin anywhere.
    """
    head, began, number = after, 0, 0
    for number, line in enumerate(lines, 1):
        try:
            found, prev = _read(line)
            if head is None:
                head = Head(found.sequence - 1, GENESIS.sum if found.sequence == 1 else prev)
            if prev != head.sum:
                raise ValueError(f"does not continue line {head.sequence} of the chain: it was changed or taken out")
            if found.sequence != head.sequence + 1:
                raise ValueError(f"has number {found.sequence}, expected {head.sequence + 1}")
        except ValueError as error:
            return ChainCheck(number - 1, head or GENESIS, began, number, str(error))
        head, began = found, began or found.sequence
    return ChainCheck(number, head or GENESIS, began)


def tail(lines: Iterable[bytes], count: int) -> list[bytes]:
    """Return the last lines."""
    return list(deque(lines, maxlen=max(count, 0)))


def _read(line: bytes) -> tuple[Head, str]:
    """Return number and sum of a line, and the sum that it says the line before has."""
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"is longer than {LINE_BYTES_MAX} bytes")
    if not line.endswith(b"\n"):
        raise ValueError("is cut off")
    text = line[:-1]
    begin, end = text[:-_TAIL], text[-_TAIL:]
    total = hashlib.sha256(begin).hexdigest()
    if end != f',"sum":"{total}"}}'.encode("ascii"):
        raise ValueError("is not what was written: its sum differs")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    sequence, prev = (body.get("seq"), body.get("prev")) if isinstance(body, dict) else (None, None)
    if type(sequence) is not int or not 0 < sequence < SEQUENCE_MAX or not isinstance(prev, str):
        raise ValueError("has no number, or names no line before it")
    return Head(sequence, total), prev


def _scalar(value: Any) -> Scalar:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -SEQUENCE_MAX < value < SEQUENCE_MAX else "out of range"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _cut(value) if isinstance(value, str) else type(value).__name__


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"
