"""Control messages of operators: one question, one reply."""

from typing import Annotated

from msgspec import Meta

from wire.messages.message import ControlMessage
from wire.messages.ranges import U64, Actor, Detail, ReasonCode, Verb, Word

__all__ = ["Admin", "AdminReply"]


class Admin(ControlMessage, tag="Admin"):
    """Operator to a node: one verb of the command line ("ring show", "cluster status", ...).

    ``order`` is the same in each repeat of a question, so that the routers carry out once what it asks for.
    ``repeated``: a router may have taken it already. ``actor`` and ``role``: whom a service asks for; what counts is
    the lower one of that role and the certificate's, "" is the certificate's alone.
    """

    request: U64
    verb: Verb
    arguments: Annotated[dict[Verb, object], Meta(max_length=64)] = {}
    order: Verb = ""
    repeated: bool = False
    actor: Actor = ""
    role: Word = ""


class AdminReply(ControlMessage, tag="AdminReply"):
    """``error`` is one line: what, where, what to do. ``result`` is what ``-o json`` prints."""

    request: U64
    ok: bool
    result: object = None
    error: Detail = ""
    exit_code: ReasonCode = 0
