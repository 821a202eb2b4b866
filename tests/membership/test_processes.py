"""Real processes on loopback: joining, dying, pausing, rotating. The long ones are slow tests."""

import signal
import time
from pathlib import Path

import pytest

from membership.keyring import generate_key, key_id
from tests.membership.processes import Cluster, encode_key
from tests.turn_time import assert_within, timed


@timed
def test_gossip_new_member_with_one_seed_joins_within_two_seconds(tmp_path: Path) -> None:
    """From its open sockets until all members know it (bench/membership.py includes the interpreter's start)."""
    with Cluster(tmp_path) as cluster:
        cluster.start_many(3)
        newcomer = cluster.start("new")
        told = [
            member.wait_for("NodeJoin", 20, name="new")["at"]
            for name, member in cluster.members.items()
            if name != "new"
        ]
        assert_within("the join", (max(told) - newcomer.ready_at) * 1e3, 2_000)
        cluster.wait_all_alive(20)


def test_gossip_key_is_not_visible_outside(tmp_path: Path) -> None:
    """Not in the command line or environment of a process."""
    with Cluster(tmp_path) as cluster:
        member = cluster.start("m1")
        secret = encode_key(cluster.key).encode()
        for name in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{member.pid}/{name}").read_bytes()


@pytest.mark.slow
def test_gossip_killed_node_is_known_dead_within_12_s(tmp_path: Path) -> None:
    """LAN profile, 9 members, SIGKILL."""
    with Cluster(tmp_path) as cluster:
        cluster.start_many(9)
        killed_at = time.time()
        cluster.members["m5"].end()
        assert cluster.known_dead_at("m5", 20) - killed_at <= 12.0
        del cluster.members["m5"]
        assert cluster.deaths() == []


@pytest.mark.slow
def test_gossip_member_stopped_for_five_seconds_is_not_declared_dead(tmp_path: Path) -> None:
    """LAN profile, 9 members, SIGSTOP and SIGCONT."""
    with Cluster(tmp_path) as cluster:
        cluster.start_many(9)
        for name in ("m2", "m9", "m1"):
            cluster.members[name].signal(signal.SIGSTOP)
            time.sleep(5)  # the length of the fault, not a wait for a condition
            cluster.members[name].signal(signal.SIGCONT)
            time.sleep(4)
        cluster.wait_all_alive(10)
        assert cluster.deaths() == []


@pytest.mark.slow
def test_key_rotations_cause_no_false_death(tmp_path: Path) -> None:
    """Twenty rotations, one member stopped for some seconds in the middle of each fifth."""
    with Cluster(tmp_path) as cluster:
        cluster.start_many(5)
        old = cluster.key
        for turn in range(20):
            new = generate_key()
            paused = cluster.members["m4"] if turn % 5 == 4 else None
            for step, word in (("install", encode_key(new)), ("use", key_id(new).hex()), ("remove", key_id(old).hex())):
                if paused and step == "use":
                    paused.signal(signal.SIGSTOP)
                    time.sleep(3)  # the length of the fault
                    paused.signal(signal.SIGCONT)
                answer = cluster.members["m1"].ask("keys", step, word)
                assert answer["complete"], answer
            assert answer["keys"] == {key_id(new).hex(): 5}
            old = new
        cluster.wait_all_alive(10)
        assert cluster.deaths() == []


@pytest.mark.slow
def test_old_key_is_refused_after_a_rotation(tmp_path: Path) -> None:
    """A member that missed the rotation stays outside, and is counted."""
    with Cluster(tmp_path) as cluster:
        cluster.start_many(3)
        new = generate_key()
        for step, word in (
            ("install", encode_key(new)),
            ("use", key_id(new).hex()),
            ("remove", key_id(cluster.key).hex()),
        ):
            assert cluster.members["m1"].ask("keys", step, word)["complete"]
        cluster.start("late")  # with the old key file
        deadline = time.monotonic() + 10
        while not cluster.members["m1"].ask("counters")["counters"]["dropped_unknown_key"]:
            assert time.monotonic() < deadline
        assert "late" not in cluster.members["m1"].ask("members")["members"]
