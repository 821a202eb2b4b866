"""Connects: what the connections of one turn ask of a storage node, and its answers: arrays of records, a frame each.

A CONNECT that is let in asks for its client ID, the end of a connection is reported; an edge sends both together, and a
storage node answers together what it can answer in one turn. Each record keeps its own request and gets its own answer:
``Moved`` may come for one and not for its neighbour. Records are arrays without names, since millions of them pass.
The order in a frame is that in which they were asked. Decision: docs/adr/0202-connects-of-a-turn.md.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from wire.decoding import Payload, strictly
from wire.messages.control import CONTROLS_MAX
from wire.messages.sessions import CloseSession, OpenSession, SessionClosed, SessionOpened

__all__ = ["ConnectAnswer", "ConnectRequest", "decode_answers", "decode_connects", "encode_record"]

ConnectRequest = OpenSession | CloseSession
ConnectAnswer = SessionOpened | SessionClosed

# Returns one record; ``join_controls`` makes a frame of some.
encode_record: Callable[[ConnectRequest | ConnectAnswer], bytes] = msgspec.msgpack.Encoder().encode

_BOUND = msgspec.Meta(min_length=1, max_length=CONTROLS_MAX)
_requests_decoder = msgspec.msgpack.Decoder(Annotated[list[ConnectRequest], _BOUND])
_answers_decoder = msgspec.msgpack.Decoder(Annotated[list[ConnectAnswer], _BOUND])

# Return the records of a frame, in their order. Raise Unreadable for all if one cannot be read.
decode_connects: Callable[[Payload], list[ConnectRequest]] = strictly(_requests_decoder.decode, "CONNECTS")
decode_answers: Callable[[Payload], list[ConnectAnswer]] = strictly(_answers_decoder.decode, "CONNECT_ANSWERS")
