"""QoS 2 from durable publishers: the packet identifier is durable, with its origin, before any fan-out.

The same identifier gets the same origin until PUBREL (or a failing PUBREC) releases it; the next use gets a new
counter. The picks of shared groups are stored with it, so that a repeat through another edge goes to the same members.
Source: MQTT 5.0 sections 4.3.3, 4.8.2; docs/protocol.md section 5.
"""

import msgspec

from mqtt.reasons import ReasonCode
from storage.state import keys
from storage.state.durable_sessions import DurableSession
from storage.state.partition import Partition
from wire.messages.redispatch import SharePick
from wire.messages.sessions import InboundRecorded, InboundReleased, RecordInbound, ReleaseInbound

__all__ = ["InboundIdentifiers"]

_picks_decoder = msgspec.msgpack.Decoder(list[SharePick])


class InboundIdentifiers:
    """Inbound QoS 2 identifiers of one partition's sessions."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def restore(self, session: DurableSession, packet_identifier: int, value: bytes) -> None:
        """Restore an unreleased identifier from disk: its counter in 8 bytes, then its picks if there are any."""
        counter = int.from_bytes(value[:8], "big")
        session.inbound[packet_identifier] = counter
        if len(value) > 8:
            session.picks[packet_identifier] = _picks_decoder.decode(value[8:])
        session.next_inbound = max(session.next_inbound, counter + 1)

    def record(self, request: RecordInbound, edge: str) -> None:
        """Assign a counter to an identifier, or repeat its known one."""
        partition = self._partition
        session = partition.sessions.get(request.session)
        if session is None or session.owner_epoch != request.owner_epoch:
            partition.send_control(edge, InboundRecorded(request.request, 0, ReasonCode.UNSPECIFIED_ERROR))
            return
        counter = session.inbound.get(request.packet_identifier)
        if counter is None:
            lowest = min(session.inbound.values(), default=session.next_inbound)
            if session.next_inbound - lowest >= partition.settings.inbound_unreleased_max:
                partition.send_control(edge, InboundRecorded(request.request, 0, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED))
                return
            counter = session.next_inbound
            session.next_inbound += 1
            session.inbound[request.packet_identifier] = counter
            self._save(session, request.packet_identifier, request.picks)
        elif request.picks:
            known = {pick.share: pick for pick in session.picks.get(request.packet_identifier, ())}
            for pick in request.picks:
                if pick.share not in known or pick.attempt > known[pick.share].attempt:
                    known[pick.share] = pick
            self._save(session, request.packet_identifier, list(known.values()))
        picks = session.picks.get(request.packet_identifier, [])
        partition.send_control(edge, InboundRecorded(request.request, counter, picks=picks))

    def _save(self, session: DurableSession, packet_identifier: int, picks: list[SharePick]) -> None:
        value = session.inbound[packet_identifier].to_bytes(8, "big")
        if picks:
            session.picks[packet_identifier] = picks
            value += msgspec.msgpack.encode(picks)
        self._partition.put(keys.inbound_key(self._partition.number, session.number, packet_identifier), value)

    def release(self, request: ReleaseInbound, edge: str) -> None:
        """Forget an identifier; PUBCOMP leaves when that is committed."""
        partition = self._partition
        session = partition.sessions.get(request.session)
        if session is not None and session.owner_epoch == request.owner_epoch:
            counter = session.inbound.pop(request.packet_identifier, None)
            session.picks.pop(request.packet_identifier, None)
            if counter is not None:
                partition.delete(keys.inbound_key(partition.number, session.number, request.packet_identifier))
                if max(session.inbound.values(), default=0) < counter:
                    partition.touch(session)  # next_inbound must survive: no row is left to derive it from
        partition.send_control(edge, InboundReleased(request.request))
