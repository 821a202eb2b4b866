"""Schedules of the map in pages, played by whole clusters: links and routers that fail between pages."""

import pytest

from router.map.commands import Delegate
from tests.simulation.scene import EPHEMERAL, Scene


def reading(scene: Scene, edge: str) -> bool:
    """Whether an edge has received the first page of a map, but not the last."""
    return scene.cluster.edge(edge).core.lease.is_reading_map


def epoch(scene: Scene, edge: str) -> int:
    """Return the epoch of an edge's map."""
    return scene.cluster.edge(edge).core.lease.map.epoch


@pytest.mark.parametrize("how", ["link", "router"])
def test_follower_that_reconnects_between_pages_reaches_the_newest_map(how: str) -> None:
    """Its router's link is cut between two pages, or the router dies; the map changes meanwhile."""
    scene = Scene(routers=3, edges=2, storages=1, map_page_bytes=100)
    subscriber = scene.client("subscriber", "e2", EPHEMERAL, "t/#")
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, "t/1", "before")
    lease = scene.cluster.edge("e2").core.lease
    lease.follow_again(0.0)  # as after a missing step
    lease.map.epoch -= 1
    scene.cluster.edge("e2").poke()
    scene.until(lambda: reading(scene, "e2"))
    router = lease.following
    if how == "link":
        scene.cut("e2", router)
    else:
        scene.kill(router)
        scene.until(lambda: any(core.leads for core in scene.routers().values()))
    scene.run(0.3)
    scene.decide(Delegate("plant", 2))
    scene.decide(Delegate("plant", 0))
    if how == "link":
        scene.heal("e2", router)
    else:
        scene.start(router)
    scene.until(lambda: epoch(scene, "e2") == scene.map.epoch and not reading(scene, "e2"), 20.0)
    scene.publish(publisher, "t/2", "after")
    scene.until(lambda: subscriber.received == ["before", "after"], 20.0)
    scene.judge()


def test_every_step_as_a_map_in_pages() -> None:
    """No step fits a page of 60 bytes: the nodes reload the map at every change, while it keeps changing."""
    scene = Scene(routers=1, edges=2, storages=2, replicas=2, map_page_bytes=60)
    durable = scene.client("durable", "e2", None, "t/#")
    publisher = scene.client("publisher", "e1")
    for depth in (2, 3, 2, 3):
        scene.decide(Delegate("plant", depth))
    scene.kill("s1")
    scene.until(lambda: scene.is_dead("s1"), 20.0)
    scene.publish(publisher, "t/1", "one")
    scene.start("s1")
    scene.until(lambda: durable.received == ["one"], 20.0)
    scene.until(lambda: epoch(scene, "e1") == epoch(scene, "e2") == scene.map.epoch)
    scene.judge()
