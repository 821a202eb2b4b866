"""Connects: the session requests of an iteration to a storage node, and its answers: arrays of records, a frame each.

An admitted CONNECT claims its client ID, and the end of a connection is reported; an edge sends both together. A
storage node answers together as much as it can in one iteration. Each record has its own request and its own answer:
``Moved`` may answer one and not its neighbour. Records are arrays without names, because millions of them are sent. The
order in a frame is the order of the requests. Decision: docs/adr/0202-connects-of-a-turn.md.
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

# Returns one record; ``join_controls`` makes a frame of several.
encode_record: Callable[[ConnectRequest | ConnectAnswer], bytes] = msgspec.msgpack.Encoder().encode

_BOUND = msgspec.Meta(min_length=1, max_length=CONTROLS_MAX)
_requests_decoder = msgspec.msgpack.Decoder(Annotated[list[ConnectRequest], _BOUND])
_answers_decoder = msgspec.msgpack.Decoder(Annotated[list[ConnectAnswer], _BOUND])

# Return the records of a frame, in their order. Raise Unreadable for all if one is malformed.
decode_connects: Callable[[Payload], list[ConnectRequest]] = strictly(_requests_decoder.decode, "CONNECTS")
decode_answers: Callable[[Payload], list[ConnectAnswer]] = strictly(_answers_decoder.decode, "CONNECT_ANSWERS")
