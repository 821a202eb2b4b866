"""CPU scheduling of the nodes of one host: work on clients' messages precedes background work.

Linux first divides a core among sessions (autogroup), and every node is its own session. So nice values have no effect
between nodes. Effective are the nice value of the *session's group*, and a short slice for the edge, which then need
not wait for the end of another process's long slice. Neither needs a privilege. A kernel or container without these
features changes only the scheduling. Decision and measurements: docs/adr/0060-who-waits-for-the-core.md.
"""

import ctypes
import logging
import os
import platform
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from conf.events import say
from conf.node_settings import NodeSettings

__all__ = ["take_turns"]

logger = logging.getLogger(__name__)

GROUP_FILE = Path("/proc/self/autogroup")
SYSTEM_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
# struct sched_attr of Linux: size, policy, flags, nice, priority, runtime (of SCHED_OTHER the slice), deadline, period
ATTRIBUTES = struct.Struct("=IIQiIQQQ")
NS_PER_US = 1_000
SLICED = (os.SCHED_OTHER, os.SCHED_BATCH)  # other policies have no slice, and real-time ones need none
POLICIES = {os.SCHED_IDLE: "SCHED_IDLE", os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR", 6: "SCHED_DEADLINE"}


def take_turns(settings: NodeSettings, sources: Mapping[str, str], group_file: Path = GROUP_FILE) -> bool:
    """Set the nice value of this process's group and the slice of its main thread.

    Return whether the process should yield between two pieces of work: its group has a nice value, and its policy
    shares the CPU by time. Under SCHED_DEADLINE a yield gives up the rest of a period.

    Args:
        settings: ``group_nice`` and ``slice_us``; 0 leaves either unchanged.
        sources: Names of explicit settings: their failure is a warning, that of a default a debug line.
        group_file: File of the group's nice value.
    """
    changes: tuple[tuple[str, int, Callable[[int], str]], ...] = (
        ("group_nice", settings.group_nice, partial(_set_group, group_file=group_file)),
        ("slice_us", settings.slice_us, _set_slice),
    )
    applied: dict[str, bool] = {}
    for name, value, change in changes:
        if not value:
            continue
        why = change(value)
        applied[name] = not why
        if why:
            level = logging.WARNING if f"node.{name}" in sources else logging.DEBUG
            say(logger, "node.setting_without_effect", setting=name, value=value, why=why, level=level)
    return applied.get("group_nice", False) and os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in SLICED


def _set_group(nice: int, group_file: Path) -> str:
    """Return "", or why the group's nice value could not be set."""
    if os.getsid(0) != os.getpid():
        return "this process shares its session with others, such as a shell"
    try:
        with group_file.open("r+") as group:
            group.write(str(nice))
    except FileNotFoundError:
        return f"this kernel has no {group_file}"
    except OSError as error:
        return f"{group_file}: {error.strerror}"
    return ""


def _set_slice(slice_us: int) -> str:
    """Return "", or why the slice of this thread could not be set.

    Policy, flags and nice value are kept: a unit file or ``chrt`` may have set them.
    """
    calls = SYSTEM_CALLS.get(platform.machine())
    if calls is None:
        return f"not known for {platform.machine()}"
    call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
    found = ctypes.create_string_buffer(ATTRIBUTES.size)
    if call(calls[1], 0, found, ATTRIBUTES.size, 0) != 0:
        return os.strerror(ctypes.get_errno())
    size, policy, flags, nice, priority, _, deadline, period = ATTRIBUTES.unpack(found.raw)
    if policy not in SLICED:
        name = POLICIES.get(policy, f"scheduling policy {policy}")
        return f"this process runs under {name}, which has no slices; slice_us is ignored"
    slice_ns = slice_us * NS_PER_US
    wanted = ATTRIBUTES.pack(size, policy, flags, nice, priority, slice_ns, deadline, period)
    if call(calls[0], 0, ctypes.c_char_p(wanted), 0) != 0 or call(calls[1], 0, found, ATTRIBUTES.size, 0) != 0:
        return os.strerror(ctypes.get_errno())
    return "" if ATTRIBUTES.unpack(found.raw)[5] == slice_ns else "this kernel has no slices (Linux 6.12 has)"
