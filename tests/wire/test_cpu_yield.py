"""CPU yields before each step of a task, and between the pieces of a link's input."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.patience import PATIENCE_S
from wire.cpu_yield import YieldBeforeSteps

ROUTER = """
import os, signal, sys
ways = 0
kernels = os.sched_yield
def counted():
    global ways
    ways += 1
    kernels()
os.sched_yield = counted
from stratamq.packages import load_config, service_main
config = load_config("router", None, sys.argv[1:], {})
service_main("router")(config, lambda _: os.kill(os.getpid(), signal.SIGTERM))
print("ways", "many" if ways > 100 else ways)
"""


async def test_yield_before_steps_yields_before_each_task_step() -> None:
    calls: list[str] = []
    instrument = YieldBeforeSteps(lambda: calls.append("way"))
    await trio.testing.wait_all_tasks_blocked()

    async def work() -> None:
        for _ in range(3):
            calls.append("step")
            await trio.lowlevel.checkpoint()

    trio.lowlevel.add_instrument(instrument)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
    finally:
        trio.lowlevel.remove_instrument(instrument)
    assert calls.count("step") == 3
    assert all(calls[at - 1] == "way" for at, what in enumerate(calls) if what == "step")


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroup")
@pytest.mark.parametrize(("nice", "ways"), [("5", "many"), ("0", "0")])
def test_router_yields_if_its_group_has_a_nice_value(tmp_path: Path, nice: str, ways: str) -> None:
    """Runs a whole router from start to orderly stop."""
    flags = [f"node.data_dir={tmp_path / 'r'}", "node.link_port=0", "node.plaintext_links=true"]
    ran = subprocess.run(
        [sys.executable, "-c", ROUTER, *flags, "node.id=router-0", f"node.group_nice={nice}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        start_new_session=True,
        env=dict(os.environ),
    )
    assert f"ways {ways}\n" in ran.stdout, ran.stderr
