"""The cluster of a process, identified by its cluster ID: the stored one, or that of the first map.

Two clusters may have the same name and certificates of the same authority. Their cluster IDs differ: each is random, is
made when the routers' group bootstraps, and is part of the map. Sans-IO; a node stores it in its data folder
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
        cluster_id: "" before the first accepted map, unless one is stored.
        has_map: A map of this cluster has been accepted since the start.
        refusal: Why this process ends: the first map belongs to another cluster; "" otherwise.
    """

    def __init__(self, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self.has_map = False
        self.refusal = ""

    def accepts(self, cluster_map: ClusterMap) -> bool:
        """Return whether a map belongs to this cluster; without a known cluster ID, the map's is adopted.

        A map of another cluster is logged. It ends the process only before the first map of its own cluster: later it
        indicates a faulty router. A map of epoch 0 belongs to a router that has not applied its log yet. It has no
        cluster, and the node requests the map again.
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
