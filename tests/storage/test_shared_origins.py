"""A shared group's pick and the ordinary copy of one QoS 2 message reach a partition under one origin: both count."""

from storage.origins import origin_of
from wire.batches import OriginKind, PublishMessage


def test_pick_and_ordinary_copy_are_remembered_apart() -> None:
    """The second of the two is not a repeat of the first; the same one again is."""
    ordinary = PublishMessage(7, b"t", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=3)
    picked = PublishMessage(8, b"t", b"x", 2, origin_kind=OriginKind.SESSION, origin_a=5, origin_b=3, share=b"g/t")
    assert origin_of(ordinary, "edge-0", 1)[0] != origin_of(picked, "edge-0", 1)[0]
    assert origin_of(picked, "edge-0", 1) == origin_of(picked, "edge-1", 2)
