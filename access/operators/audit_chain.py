"""The audit log as JSON lines, each with the SHA-256 of the previous one, so that changes and removals are detected.

A line ends in ``sum``, the hash of the line before it, and holds in ``prev`` the ``sum`` of the previous line. A
change, a gap or a reordering is found at its line. A truncated end, or a completely rewritten file, is not detectable
from the file alone: compare the last ``sum`` with a copy stored elsewhere.

Untrusted text (names, client IDs) is cut to 256 characters, and characters outside printable ASCII are escaped, so no
text can end a line or control a terminal. There are no fields for passwords, records, tokens, keys and payloads.
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
LINE_BYTES_MAX = 256 * 1024  # a longer line is invalid: values are cut on encoding
SEQUENCE_MAX = 1 << 62
SUM_HEX = 64
_TAIL = len(',"sum":""}') + SUM_HEX

Scalar = str | int | float | bool


class AuditRecord(msgspec.Struct, frozen=True):
    """One audited event. Texts may be untrusted; ``arguments`` holds those that are not secret."""

    kind: str  # "verb", "login", "publish", "subscribe", "will", "kick", "order", "reload", "start",
    # "gap"
    outcome: str  # "done", "partial" (not settled), "refused", "failed"
    actor: str = ""  # operator or user
    role: str = ""
    serial: str = ""  # of the certificate
    address: str = ""
    client_id: str = ""
    verb: str = ""
    arguments: dict[str, Scalar] = {}
    reason: str = ""  # of the refusal
    epoch: int = 0  # policy_epoch that was used, or created
    count: int = 1  # number of equal events since the last line about them


class Head(msgspec.Struct, frozen=True):
    """End of a chain: number and sum of its last line."""

    sequence: int
    sum: str


GENESIS = Head(0, "0" * SUM_HEX)


class ChainCheck(msgspec.Struct, frozen=True):
    """Result of a verification: valid lines, the end of the chain, and the first break, if any."""

    lines: int
    head: Head
    began: int  # sequence of the first line: above 1 if older files are absent
    broken_line: int = 0  # of the file, from 1; 0: none
    broken: str = ""


def make_line(record: AuditRecord, utc: float, head: Head) -> tuple[bytes, Head]:
    """Return the line of a record, with its newline, and the chain's new end. Never raises."""
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
    """Return the end of a chain with this last line.

    Raises:
        ValueError: It is not a complete audit line; the text is the reason.
    """
    return _read(line)[0]


def verify(lines: Iterable[bytes], after: Head | None = None) -> ChainCheck:
    """Verify the lines of one file, each with its newline; stops at the first break. Never raises.

    Args:
        after: End of the previous file; None: any start is valid.
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
    """Return number and sum of a line, and the sum of the previous line in it."""
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
