"""Committable offsets of a consumer group."""

from random import Random

from gateways.bridges.offsets import Offsets

PARTITION = ("t", 0)


def test_offsets_commit_stops_at_first_unfinished_record() -> None:
    """Read, finished and committed in any order; a model computes the lost records."""
    for seed in range(200):
        random, offsets = Random(seed), Offsets()
        offsets.assign(PARTITION)
        read: list[int] = []
        finished: set[int] = set()
        committed = 0
        at = random.randrange(5)
        for _ in range(60):
            choice = random.random()
            if choice < 0.4:
                at += random.choice((1, 1, 1, 3))  # compacted topics have gaps
                read.append(at)
                offsets.read(PARTITION, at)
            elif choice < 0.8 and set(read) - finished:
                done = random.choice(sorted(set(read) - finished))
                finished.add(done)
                offsets.finish(PARTITION, done)
            else:
                moved = offsets.to_commit()
                committed = moved.get(PARTITION, committed)
                offsets.committed(moved)
                lost = [each for each in read if each < committed and each not in finished]
                assert not lost, f"seed {seed}: {lost} below {committed}"
        for each in read:
            offsets.finish(PARTITION, each)
        moved = offsets.to_commit()
        assert not read or moved.get(PARTITION, committed) == read[-1] + 1


def test_offsets_revoked_partition_is_ignored() -> None:
    offsets = Offsets()
    offsets.assign(PARTITION)
    offsets.read(PARTITION, 7)
    assert offsets.open_records(PARTITION) == 1 and offsets.is_assigned(PARTITION)
    offsets.revoke(PARTITION)
    assert not offsets.is_assigned(PARTITION)
    offsets.finish(PARTITION, 7)
    assert offsets.to_commit() == {} and offsets.open_records(PARTITION) == 0 and offsets.finished_since == 0


def test_offsets_committed_offset_is_not_returned_again() -> None:
    offsets = Offsets()
    offsets.assign(PARTITION)
    offsets.read(PARTITION, 0)
    assert offsets.to_commit() == {}
    offsets.finish(PARTITION, 0)
    assert offsets.to_commit() == {PARTITION: 1} == offsets.to_commit()
    offsets.committed({PARTITION: 1})
    assert offsets.to_commit() == {}
