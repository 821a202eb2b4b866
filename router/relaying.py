"""Messages between two nodes whose direct link is down, handed on by a router.

A message is read here: the one who wrote it is to blame for it, not the router that the other side hears it from. The
sender repeats what gets no answer. Rules: docs/protocol.md rule 1.8.
"""

from collections.abc import Callable

from wire.links.allowed import RELAYED, fault_of
from wire.messages.cluster_map import ClusterMap
from wire.messages.control import Control, decode_control
from wire.messages.hello import PeerKey
from wire.messages.nodes import Relay, Relayed

__all__ = ["Relaying"]


class Relaying:
    """Handing on, where both incarnations live.

    Args:
        tell: Sends a message to a node.
        count: Counts an event by name.
    """

    def __init__(self, tell: Callable[[str, Control], None], count: Callable[[str], None]) -> None:
        self._tell = tell
        self._count = count

    def take(self, peer: PeerKey | None, message: Relay, cluster_map: ClusterMap) -> bool:
        """Hand a message on; False if no honest node asks for that.

        Raises:
            Unreadable: There is no message in it.
        """
        inner = decode_control(message.message)
        alive = cluster_map.is_alive
        if peer is None or not alive(peer.node, peer.incarnation) or not alive(message.node, message.incarnation):
            self._count("relays_of_dead")
            return True
        receiver = cluster_map.nodes[message.node].tier
        if not isinstance(inner, RELAYED) or fault_of(peer, receiver, inner):
            return False
        self._tell(message.node, Relayed(peer.node, peer.incarnation, message.message))
        self._count("relayed")
        return True
