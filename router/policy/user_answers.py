"""Users by name for requesting edges, from this router's policy with its policy_epoch.

Functions of a request and the machine. Rules: docs/adr/0034.
"""

from collections.abc import Iterator

import msgspec

from access.policy.machine import PolicyMachine
from wire.messages.pieces import PIECE_BYTES
from wire.messages.policy import AskCredentials, FetchUsers, UserRecords

__all__ = ["answers_to"]


def answers_to(question: AskCredentials | FetchUsers, machine: PolicyMachine) -> Iterator[UserRecords]:
    """Yield answers that each fit a frame; a repeated name is answered once.

    Only the answer for a login contains password record and SCRAM verifier.
    """
    if isinstance(question, AskCredentials):
        yield UserRecords(
            question.request, machine.epoch, [question.user], [_record(machine, question.user, secret=True)]
        )
        return
    answer = UserRecords(question.request, machine.epoch, [], [])
    size = 0
    for name in dict.fromkeys(question.names):
        record = _record(machine, name, secret=False)
        length = 8 + 4 * len(name) + len(record or b"")
        if answer.names and size + length > PIECE_BYTES:
            yield answer
            answer, size = UserRecords(question.request, machine.epoch, [], []), 0
        answer.names.append(name)
        answer.records.append(record)
        size += length
    yield answer


def _record(machine: PolicyMachine, name: str, *, secret: bool) -> bytes | None:
    user = machine.user(name)
    if user is None:
        return None
    return msgspec.msgpack.encode(user if secret else msgspec.structs.replace(user, record="", verifier=""))
