"""Schedules of the map in pages, played by whole clusters: links and routers that go in the middle of one."""

import pytest

from router.map.commands import Delegate
from tests.simulation.scene import EPHEMERAL, Scene


def reading(scene: Scene, edge: str) -> bool:
    """Whether an edge has the first page of a map, and not the last."""
    return scene.cluster.edge(edge).core.lease.is_reading_map


def epoch(scene: Scene, edge: str) -> int:
    """Return the epoch of an edge's map."""
    return scene.cluster.edge(edge).core.lease.map.epoch


@pytest.mark.parametrize("how", ["link", "router"])
def test_a_follower_that_reconnects_in_the_middle_of_a_map_ends_at_the_newest(how: str) -> None:
    """Its router's link is cut between two pages, or the router dies; steps are made meanwhile."""
    scene = Scene(routers=3, edges=2, storages=1, map_page_bytes=100)
    subscriber = scene.client("subscriber", "e2", EPHEMERAL, "t/#")
    publisher = scene.client("publisher", "e1")
    scene.publish(publisher, "t/1", "before")
    lease = scene.cluster.edge("e2").core.lease
    lease.follow_again(0.0)  # as when a step was missing
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
    """With pages of 60 bytes no step fits one: the nodes read the map at every change, while it goes on changing."""
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
