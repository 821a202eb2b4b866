"""Slots of unauthenticated connections: admission, displacement, and bounds of the tables."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conf.addresses import address_key
from conf.admission import FIRST_BYTE_S, POOLS, Admission, AdmissionPool, AdmissionSlot, KnownAddresses, PoolBounds
from tests.whole_state import whole_state

PLACES, SHARE, PATIENCE_S = 16, 4, 1.0  # eight slots for each half
BOUNDS = PoolBounds(PLACES, SHARE, 1.0, PATIENCE_S)
NODE, OTHER_NODE = "10.0.0.1", "10.0.0.2"
STRANGERS = [f"192.0.2.{number}" for number in range(12)] + ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]


@dataclass(eq=False)
class Connection:
    """One connection of a shell."""

    address: str
    has_sent: bool = False
    place: AdmissionSlot["Connection"] | None = field(default=None, repr=False)


def pool_of(bounds: PoolBounds = BOUNDS, known: tuple[str, ...] = (NODE, OTHER_NODE)) -> AdmissionPool[Connection]:
    addresses = KnownAddresses()
    addresses.fix("map", known)
    return AdmissionPool(bounds, addresses.knows, lambda connection: connection.has_sent)


def come(pool: AdmissionPool[Connection], now: float, address: str, *, sends: bool = False) -> Admission[Connection]:
    """Open a connection."""
    connection = Connection(address)
    admission = pool.admit(now, address, connection)
    connection.place, connection.has_sent = admission.place, sends
    return admission


class Pool(RuleBasedStateMachine):
    """Connections open, send, authenticate, and are displaced."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.pool = pool_of()
        self.held: list[Connection] = []  # oldest first

    def of(self, *, known: bool) -> list[Connection]:
        return [each for each in self.held if (each.address in (NODE, OTHER_NODE)) == known]

    @rule(address=st.sampled_from([*STRANGERS, NODE, OTHER_NODE]))
    def arrive(self, address: str) -> None:
        known = address in (NODE, OTHER_NODE)
        rivals, mine = self.of(known=known), [each for each in self.held if same(each.address, address)]
        connection = Connection(address)
        place, displaced = self.pool.admit(self.now, address, connection)
        free = len(rivals) < PLACES // 2 and (known or len(mine) < SHARE)
        candidates = rivals if known or len(mine) < SHARE else mine
        yields = [
            each
            for each in candidates
            if not each.has_sent or each.place.began <= self.now - PATIENCE_S  # type: ignore[union-attr]
        ]
        if free:
            assert place is not None and displaced is None
        elif any(not each.has_sent for each in candidates):
            assert place is not None and displaced is not None
            share_is_used = not known and len(mine) >= SHARE
            silent = [each for each in candidates if not each.has_sent]
            if share_is_used or silent[0].place.began <= self.now - FIRST_BYTE_S:  # type: ignore[union-attr]
                assert not displaced.owner.has_sent
            counts = Counter(address_key(each.address) for each in candidates)
            if not share_is_used and displaced.owner is not silent[0]:  # it is of an address with most slots
                assert counts[address_key(displaced.owner.address)] == max(counts.values())
        elif yields:
            assert place is not None and displaced is not None  # no starvation while an unauthenticated one is old
        if displaced is not None:
            assert displaced.owner in candidates  # no half, and no address beyond its share, takes slots from others
            self.held.remove(displaced.owner)
        if place is not None:
            connection.place = place
            self.held.append(connection)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.held)).has_sent = True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.held))
        self.held.remove(gone)
        assert gone.place is not None
        gone.place.leave()
        gone.place.leave()  # a second call has no effect

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.5]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        late = [place.owner for place in self.pool.take_silent(self.now)]
        began_max = self.now - 1.0
        silent = [each for each in self.held if not each.has_sent]
        expected = [each for each in silent if each.place.began <= began_max]  # type: ignore[union-attr]
        assert set(map(id, late)) == set(map(id, expected))
        self.held = [each for each in self.held if each not in late]

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.pool) == len(self.held)
        assert len(self.of(known=False)) <= PLACES // 2 and len(self.of(known=True)) <= PLACES // 2
        for address in STRANGERS:
            assert sum(same(each.address, address) for each in self.held) <= SHARE


def same(one: str, other: str) -> bool:
    """Whether two addresses count as one."""
    return address_key(one) == address_key(other)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


def test_admit_known_address_is_admitted_during_flood() -> None:
    pool = pool_of()
    for number in range(1_000):
        come(pool, 0.0, f"198.51.{number // 250}.{number % 250}", sends=number % 2 == 0)
    for _ in range(PLACES // 2):
        admission = come(pool, 0.0, NODE, sends=True)
        assert admission.place is not None and admission.displaced is None


def test_admit_address_with_most_slots_is_displaced() -> None:
    """All have sent data recently: an address with two or more slots loses its oldest one."""
    pool = pool_of()
    greedy = [come(pool, 0.0, address, sends=True) for address in STRANGERS[:2] for _ in range(SHARE)]
    admission = come(pool, 0.1, STRANGERS[2], sends=True)
    assert admission.place is not None and admission.displaced is greedy[0].place


@pytest.mark.parametrize("sends", [False, True])
def test_admit_new_connection_survives_reconnects_of_few_addresses(sends: bool) -> None:
    """Its first byte is late, and it is the oldest silent one: the addresses with more slots lose theirs."""
    pool = pool_of()
    held = [come(pool, 0.0, STRANGERS[number % 2], sends=sends) for number in range(8)]
    newcomer = come(pool, 1.0, STRANGERS[5])
    assert newcomer.place is not None and newcomer.displaced in [each.place for each in held]
    for number in range(100):
        again = come(pool, 1.1, STRANGERS[number % 2], sends=sends)
        assert again.displaced is not newcomer.place
    assert len(pool) == PLACES // 2


def test_admit_is_refused_while_all_are_young_and_equal() -> None:
    pool = pool_of()
    for address in STRANGERS[: PLACES // 2]:
        come(pool, 0.0, address, sends=True)
    assert come(pool, 0.9, STRANGERS[9]).place is None and pool.counts == {"refused": 1}
    assert come(pool, 1.1, STRANGERS[9]).place is not None and pool.counts == {"refused": 1, "displaced_slow": 1}


def test_admit_flood_of_one_address_displaces_no_other() -> None:
    pool = pool_of()
    honest = [come(pool, 0.0, address) for address in STRANGERS[1:4]]
    assert not {come(pool, 0.001 * n, STRANGERS[0]).displaced for n in range(1_000)} & {each.place for each in honest}


def test_pool_memory_is_bounded_for_100_000_addresses() -> None:
    bounds = POOLS["node_links"]
    pool = pool_of(bounds)
    for number in range(100_000):
        come(pool, number / 10_000, f"172.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(pool) == bounds.places_max // 2
    assert len(whole_state(pool)) < 100 * bounds.places_max


def test_known_addresses_are_bounded_and_one_name_displaces_none_of_another() -> None:
    known = KnownAddresses(addresses_max=1_000)
    for number in range(100):
        known.add(f"user-{number}", f"192.0.2.{number}", 0.0)
    for number in range(20_000):  # one user with a /48 of IPv6
        known.add("mallory", f"2001:db8:{number:x}::1", 1.0)
    assert all(known.knows(f"192.0.2.{number}", 2.0) for number in range(100))
    assert len(known) == 108
    for number in range(10_000):
        known.add(f"other-{number}", f"10.0.{number >> 8}.{number & 255}", 3.0)
    assert len(known) == 1_000 and len(whole_state(known)) < 50_000


def test_known_addresses_of_names_without_end_are_bounded() -> None:
    """Each command of an operator has its own name, and one address."""
    known = KnownAddresses(addresses_max=100)
    for number in range(10_000):
        known.add(f"command-{number}", "192.0.2.1", 0.0)
    assert len(known) == 1 and known.knows("192.0.2.1", 0.0) and len(whole_state(known)) < 5_000


def test_known_addresses_expire_after_a_day_and_fixed_ones_with_their_source() -> None:
    known = KnownAddresses()
    known.add("edge/edge-0", "192.0.2.1", 0.0)
    known.add("", "192.0.2.2", 0.0)  # without an authentication
    known.fix("map", ["192.0.2.3", "router-0.example", "2001:db8::1"])
    assert [known.knows(f"192.0.2.{n}", 86_400.0) for n in (1, 2, 3)] == [True, False, True]
    assert known.knows("2001:db8::ffff", 0.0) and not known.knows("", 0.0)
    known.fix("map", [])
    assert not known.knows("192.0.2.1", 86_401.0) and not known.knows("192.0.2.3", 0.0)
