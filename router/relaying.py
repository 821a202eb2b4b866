"""Messages between two nodes whose direct link is down, forwarded by a router.

The router decodes each message, so that a violation closes the link of its author, not of the router. The sender
repeats messages that get no answer. Rules: docs/protocol.md rule 1.8.
"""

from collections.abc import Callable

from wire.links.allowed import RELAYED, fault_of
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control, decode_control
from wire.messages.hello import PeerKey
from wire.messages.nodes import Relay, Relayed

__all__ = ["MessageRelay"]


class MessageRelay:
    """Forwarding of messages between live incarnations.

    Args:
        send_message: Sends a message to a node.
        count: Counts an event by name.
    """

    def __init__(self, send_message: Callable[[str, Control], None], count: Callable[[str], None]) -> None:
        self._send_message = send_message
        self._count = count

    def take(self, peer: PeerKey | None, message: Relay, cluster_map: ClusterMap) -> bool:
        """Forward a message; return False if it violates the protocol.

        Raises:
            Unreadable: The inner message cannot be decoded.
        """
        inner = decode_control(message.message)
        alive = cluster_map.is_alive
        if peer is None or not alive(peer.node, peer.incarnation) or not alive(message.node, message.incarnation):
            self._count("relays_of_dead")
            return True
        receiver = cluster_map.nodes[message.node].tier
        if not isinstance(inner, RELAYED) or fault_of(peer, receiver, inner):
            return False
        self._send_message(message.node, Relayed(peer.node, peer.incarnation, message.message))
        self._count("relayed")
        return True
