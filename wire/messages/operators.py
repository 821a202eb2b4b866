"""Control messages of operators: one request, one reply."""

from typing import Annotated

from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import U64, Actor, Detail, ReasonCode, Verb, Word

__all__ = ["Admin", "AdminReply"]


class Admin(ControlMessage, tag="Admin"):
    """Operator to a node: one verb of the command line ("ring show", "cluster status", ...).

    ``order`` is the same in each repeat of a request, so that the routers execute it once. ``repeated``: a router may
    have executed it already. ``actor`` and ``role``: the user of a requesting service; the effective role is the lower
    one of that role and the certificate's, "" is the certificate's alone.
    """

    request: U64
    verb: Verb
    arguments: Annotated[dict[Verb, object], Meta(max_length=64)] = {}
    order: Verb = ""
    repeated: bool = False
    actor: Actor = ""
    role: Word = ""


class AdminReply(ControlMessage, tag="AdminReply"):
    """``error`` is one line: fault, place, remedy. ``result`` is the output of ``-o json``."""

    request: U64
    ok: bool
    result: object = None
    error: Detail = ""
    exit_code: ReasonCode = 0
