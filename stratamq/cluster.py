"""``stratamq up``: a complete local cluster, with each node in its own process.

Controls the run and its output; ``stratamq/local_plan.py`` plans the nodes and ``stratamq/processes.py`` runs them.
State in the data folder survives a restart.
"""

import contextlib
import datetime
import errno
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import trio

from conf.errors import ExitCode, UserError
from stratamq.local_plan import CLUSTER, ClusterPlan, NodePlan, UpOptions, make_plan
from stratamq.processes import Nodes
from wire.links.request import request
from wire.links.tls import CertificateFiles, link_contexts
from wire.messages.hello import TIER_ROUTER
from wire.messages.operators import Admin

__all__ = ["UpOptions", "run_up"]

STATUS_S = 2.0  # timeout of the status request to a router that is ready
PLANS_MAX = 3  # attempts if another program takes a planned port
TAKEN = os.strerror(errno.EADDRINUSE)
SAME_SIGNAL_S = 1.0  # some parents forward a signal that the whole process group received


def run_up(options: UpOptions) -> int:
    """Run a cluster until SIGINT, SIGTERM or SIGHUP; returns the exit code.

    Raises:
        UserError: The cluster could not be started; started nodes have been stopped.
    """
    began = time.monotonic()
    with _data_folder(options) as data:
        for tries_left in reversed(range(PLANS_MAX)):
            plan = make_plan(options, data, datetime.datetime.now(datetime.UTC))
            try:
                return trio.run(_Up(options, plan, began).run)
            except* UserError as group:
                if not tries_left or not _is_about_taken_port(group):
                    raise
            # The next plan chooses other ports, and fails if a configured port is in use.
    raise AssertionError("the last attempt returns or raises")


def _is_about_taken_port(group: BaseExceptionGroup[UserError]) -> bool:
    return TAKEN in str(group.exceptions) or any(
        isinstance(one, BaseExceptionGroup) and _is_about_taken_port(one) for one in group.exceptions
    )


@contextlib.contextmanager
def _data_folder(options: UpOptions) -> Iterator[Path]:
    """Yield the folder, locked; a temporary one is removed afterwards."""
    if options.data is None:
        data = Path(tempfile.mkdtemp(prefix="stratamq-"))
    else:
        data = options.data
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)  # it contains messages and keys
        lock = (data / "up.lock").open("a+")
    except OSError as error:
        raise UserError(f"data folder {data} cannot be written: {error.strerror or error}") from None
    try:
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"another `stratamq up` uses {data}: stop it, or use another --data") from None
            yield data
    finally:
        if options.data is None:
            shutil.rmtree(data, ignore_errors=True)


class _Up:
    """One run."""

    def __init__(self, options: UpOptions, plan: ClusterPlan, began: float) -> None:
        self._options = options
        self._plan = plan
        self._began = began
        self._all_ready = False
        self._nodes = Nodes(
            plan.nodes,
            options.settings,
            print_line=self._print,
            changed=self._write_state,
            logs=None if options.foreground else plan.data / "logs",
            restart=options.restart,
        )

    async def run(self) -> int:
        """Start the cluster, print its addresses, and run until a signal."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_on_signal, signals, nursery.cancel_scope)
                    await nursery.start(self._nodes.run)
                    self._all_ready = True
                    self._write_state()
                    self._announce(await self._copies())
                    if self._plan.admin is not None:
                        nursery.start_soon(self._open_admin, self._plan.admin)
            finally:
                self._state_file.unlink(missing_ok=True)
        return ExitCode.OK

    async def _stop_on_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for _number in signals:
            self._print("stopping ...")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._second_signal, signals, scope)
                await self._nodes.stop()
                nursery.cancel_scope.cancel()
            self._print("stopped")
            scope.cancel()
            return

    async def _second_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        began = trio.current_time()
        async for _number in signals:
            if trio.current_time() - began > SAME_SIGNAL_S:
                self._print("killed")
                scope.cancel()
                return

    async def _open_admin(self, plan: NodePlan) -> None:
        """Start the HTTP service after the nodes, and print its address."""
        if importlib.util.find_spec("litestar") is None:
            self._print("  no dashboard: install it with pip install 'stratamq[admin]'\n")
            return
        addresses = await self._nodes.add(plan)
        self._write_state()
        if "login" in addresses:
            self._print(f"  dashboard: {addresses['login']}\n  (valid for one login within ten minutes)\n")

    # -- output

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):  # stdout is closed; the cluster keeps running
            print(line, flush=True)

    async def _copies(self) -> int:
        """Return the number of copies of each partition in the cluster map; it may differ from the settings."""
        operator = self._plan.tls / "operator.pem"
        contexts = link_contexts(CertificateFiles(operator, operator.with_suffix(".key"), self._plan.tls / "ca.pem"))
        question = Admin(request=1, verb="cluster status", arguments={})
        try:
            reply = await request(
                self._plan.routers[0], contexts, question, cluster=CLUSTER, tier=TIER_ROUTER, timeout_s=STATUS_S
            )
        except UserError:
            return self._plan.replicas
        status = reply.result if reply.ok and isinstance(reply.result, dict) else {}
        return int(status.get("replicas", self._plan.replicas))

    def _announce(self, replicas: int) -> None:
        plan, options = self._plan, self._options
        counts = f"{options.routers} router, {options.storages} storage, {options.edges} edge"
        copies = "1 copy" if replicas == 1 else f"{replicas} copies"
        where = "a temporary folder" if options.data is None else f"{plan.data}/"
        seconds = time.monotonic() - self._began
        self._print(
            f"StrataMQ is ready after {seconds:.1f} s: {counts}; {copies} of every message, synced; state in {where}"
        )
        self._print("")
        described = self._nodes.describe()
        for node in plan.nodes:
            self._print(f"  {node.name:10} {_addresses(node, described.get(node.name, {}))}")
        self._suggest(plan.of_tier("balance") or plan.of_tier("edge"))
        folder = "" if plan.data == Path("data") else f" --data {_short(plan.data)}"
        self._print(f"  stratamq cluster status{folder}        Ctrl-C stops everything")
        if not options.foreground:
            self._print(f"  logs: {_short(plan.data / 'logs')}/")
        self._print("")

    def _suggest(self, endpoints: list[NodePlan]) -> None:
        """Print a subscriber and a publisher command, for different edges if there are several."""
        if not endpoints:
            return
        authority = _short(self._plan.tls / "ca.pem")
        subscriber_port, publisher_port = endpoints[0].listeners["tls"], endpoints[-1].listeners["tls"]
        self._print("")
        self._print(
            "Try it, in two terminals:" if len(endpoints) == 1 else "Try it, in two terminals, each on its own edge:"
        )
        self._print("")
        self._print(f"  mosquitto_sub -h localhost -p {subscriber_port} --cafile {authority} -t 'hello/#' -v")
        self._print(
            f"  mosquitto_pub -h localhost -p {publisher_port} --cafile {authority} -t hello/world -m 'Hello' -q 1"
        )
        self._print("")

    # -- state file for other commands

    @property
    def _state_file(self) -> Path:
        return self._plan.data / "up.json"

    def _write_state(self) -> None:
        """Write the addresses of routers and the running nodes, for other commands and tests."""
        if not self._all_ready:
            return
        state = {
            "pid": os.getpid(),
            "cluster": CLUSTER,
            "routers": list(self._plan.routers),
            "tls": str(self._plan.tls.resolve()),
            "nodes": self._nodes.describe(),
            "listeners": {node.name: node.listeners for node in self._plan.nodes if node.listeners},
        }
        temporary = self._state_file.with_suffix(".new")
        with contextlib.suppress(OSError):  # the folder was removed; the cluster keeps running
            temporary.write_text(json.dumps(state, indent=1) + "\n")
            temporary.replace(self._state_file)


def _addresses(node: NodePlan, described: dict[str, object]) -> str:
    words = [f"{name} localhost:{port}{node.paths.get(name, '')}" for name, port in node.listeners.items()]
    addresses = described.get("addresses")
    if isinstance(addresses, dict):
        others = {name: address for name, address in addresses.items() if name not in (*node.listeners, "cluster")}
        words += [f"{name} {address}" for name, address in others.items() if isinstance(address, str)]
    return ", ".join(words)


def _short(path: Path) -> str:
    """Return a path relative to the current folder if possible."""
    absolute = path.resolve()
    with contextlib.suppress(ValueError):
        return str(absolute.relative_to(Path.cwd()))
    return str(absolute)
