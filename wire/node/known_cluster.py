"""The cluster that a process belongs to, by its cluster ID: the remembered one, or that of the first map.

Two clusters may have the same name and certificates of the same authority. Their cluster IDs differ: each is random,
made when the routers' group bootstraps, and stands in the map. Sans-IO; a node remembers it in its data folder
(``conf/data_folder.py``). Rules: docs/protocol.md section 1.
"""

import logging

from conf.events import say
from wire.messages.cluster_map import ClusterMap

__all__ = ["KnownCluster"]

logger = logging.getLogger(__name__)


class KnownCluster:
    """One process's cluster.

    Attributes:
        cluster_id: "" until a map has been accepted or one is remembered.
        has_map: A map of this cluster has been accepted since the start.
        refusal: Why this process ends: the first map is one of another cluster; "" otherwise.
    """

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self.has_map = False
        self.refusal = ""

    def accepts(self, cluster_map: ClusterMap) -> bool:
        """Return whether a map is one of this cluster; where no cluster ID is known, the map's becomes it.

        A map of another cluster is said in the log. It ends the process only before the first map of its own: later
        it says something about the router that sent it. A map of epoch 0 is that of a router that has not applied
        its log yet: it is of no cluster, and the node requests the map again.
        """
        if not cluster_map.epoch:
            return not self.cluster_id
        theirs = cluster_map.cluster_id
        if self.cluster_id and theirs != self.cluster_id:
            why = f"the map is of cluster {cluster_map.cluster} ({theirs or 'without an ID'}), not ({self.cluster_id})"
            say(logger, "map.other_cluster", why=why)
            if not self.has_map:
                self.refusal = why
            return False
        self.cluster_id, self.has_map = theirs, True
        return True
