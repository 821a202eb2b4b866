"""Bodies: inline or once, in pieces, counted; gone with the last row that refers to them."""

import pytest

from storage.bodies import INLINE_BYTES_MAX, PIECE_BYTES_MAX, Bodies, BodyMissing, BodyReference
from storage.store_settings import StoreSettings
from tests.simulation.model_store import ModelDisk, ModelStore

PREFIX = b"\x00\x01b"


@pytest.fixture
def store() -> ModelStore:
    """Return an empty store."""
    return ModelStore.open(ModelDisk(), "c", "n", StoreSettings())


@pytest.mark.parametrize(
    ("length", "rows"),
    [
        (0, 0),
        (INLINE_BYTES_MAX, 0),
        (INLINE_BYTES_MAX + 1, 1),
        (PIECE_BYTES_MAX, 1),
        (PIECE_BYTES_MAX + 1, 2),
        (5 * PIECE_BYTES_MAX - 1, 5),
    ],
)
def test_a_body_is_read_back_whatever_its_size(store: ModelStore, length: int, rows: int) -> None:
    """At most 256 B stands in the row; pieces are at most 256 KiB."""
    data = bytes(range(256)) * (length // 256) + bytes(length % 256)
    bodies = Bodies(store, PREFIX)
    reference, writes = bodies.put_body(7, data)
    assert len(writes) == rows
    assert all(value is not None and len(value) <= PIECE_BYTES_MAX for _, value in writes)
    store.write(writes)
    bodies.refer(reference)
    assert bodies.get_body(BodyReference.decode(reference.encode())) == data
    store.write(bodies.release(reference))
    assert store.scan(b"", None, 10) == []


def test_a_body_is_stored_once_and_deleted_with_its_last_row(store: ModelStore) -> None:
    """Fan-out writes references only; releases delete at zero."""
    bodies = Bodies(store, PREFIX)
    reference, writes = bodies.put_body(1, b"x" * 1000)
    store.write(writes)
    bodies.refer(reference, 3)
    assert bodies.put_body(1, b"x" * 1000) == (reference, [])
    assert bodies.release(reference, 2) == []
    assert bodies.references(1) == 1
    assert bodies.release(reference) == [(writes[0][0], None)]
    with pytest.raises(ValueError, match="more often"):
        bodies.release(reference)


def test_counts_are_rebuilt_and_orphans_found(store: ModelStore) -> None:
    """After a restart the rows say what is referred to; pieces without a row are listed for deletion, in slices."""
    bodies = Bodies(store, PREFIX)
    references = []
    for body_id in range(1, 20):
        reference, writes = bodies.put_body(body_id, bytes([body_id]) * 300)
        store.write(writes)
        references.append(reference)
    store.write([(b"\x00\x01q", b"another kind")])
    again = Bodies(store, PREFIX)
    again.rebuild([*references[:10], references[0]])
    assert (len(again), again.references(1)) == (10, 2)
    for writes in again.orphans(slice_rows=4):
        store.write(writes)
    assert len(store.scan(b"", None, 100)) == 11
    assert all(again.get_body(reference) for reference in references[:10])


def test_a_lost_piece_is_named(store: ModelStore) -> None:
    """Half a body is damage, not a short message."""
    bodies = Bodies(store, PREFIX)
    reference, writes = bodies.put_body(1, b"x" * (PIECE_BYTES_MAX + 100))
    store.write(writes)
    store.write([(writes[1][0], b"short")])
    with pytest.raises(BodyMissing) as caught:
        bodies.get_body(reference)
    assert (caught.value.body_id, caught.value.piece) == (1, 1)


@pytest.mark.parametrize("field", [b"", b"\x02abc", b"\x01short"])
def test_what_is_no_reference_is_refused(field: bytes) -> None:
    """A field of a row with an unknown form or length."""
    with pytest.raises(ValueError, match="not a body reference"):
        BodyReference.decode(field)
