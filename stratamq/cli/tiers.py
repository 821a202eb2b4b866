"""``stratamq edge | router | storage``: one node in the foreground.

Loads the configuration, sets up logging, checks the compiled modules and runs the tier's service until it is stopped.
"""

import contextlib
import dataclasses
import fcntl
import gc
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conf.events import say

if TYPE_CHECKING:
    from conf.settings import NodeConfig

__all__ = ["register", "tell_ready"]

STOP_S_MAX = 11  # s; a clean stop takes less

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file; see conf/ for the defaults.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; overrides file and environment.")
]
ReadyOption = Annotated[int, typer.Option("--ready-fd", hidden=True, help="One line of JSON is written when ready.")]
LifelineOption = Annotated[int, typer.Option("--lifeline-fd", hidden=True, help="Stop at its end of file.")]


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    for tier, text in (
        ("edge", "Run an edge node, which serves MQTT clients."),
        ("router", "Run a router node, which holds the cluster map and topic routes."),
        ("storage", "Run a storage node, which holds durable sessions, queues and retained messages."),
    ):
        app.command(tier, help=text)(_command(tier))


def _command(tier: str) -> Callable[..., None]:
    def command(
        config: ConfigOption = None,
        settings: SetOption = None,
        ready_fd: ReadyOption = -1,
        lifeline_fd: LifelineOption = -1,
    ) -> None:
        raise typer.Exit(run_tier(tier, config, settings or [], ready_fd, lifeline_fd))

    return command


def run_tier(tier: str, config: Path | None, flags: list[str], ready_fd: int = -1, lifeline_fd: int = -1) -> int:
    """Run one node until it is stopped; return the exit code.

    Raises:
        UserError: An error that an operator can fix.
    """
    with _loading():
        from conf.logs import configure_logs
        from stratamq.packages import load_config, service_main
        from stratamq.start_checks import check_authorities, check_files, check_plaintext
        from wire.node.signals import survive_signals

        survive_signals()

        if lifeline_fd >= 0:
            _follow_lifeline(lifeline_fd)

        def checked() -> "NodeConfig":
            """Load and validate the settings, at the start and at each reload."""
            settings = load_config(tier, config, flags)
            check_plaintext(settings)
            if lifeline_fd < 0:  # `up` protects one folder for all its nodes
                check_files(tier, settings)
            _check_certificate(tier, settings)
            check_authorities(tier, settings)
            return settings

        early = load_config(tier, config, flags)
        configure_logs(early.logs, early.node.id)
        settings = dataclasses.replace(checked(), again=checked)
        _prepare_data_dir(settings.node.data_dir)
        _check_compiled(tier)
        serve = service_main(tier)
    return serve(settings, lambda addresses: tell_ready(ready_fd, addresses))


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Pause the garbage collector during imports: imported objects stay alive, and collections are slow."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _check_compiled(tier: str) -> None:
    from conf.compiled import COMPILED_MODULES, NotCompiled, require_compiled
    from conf.errors import UserError

    shared = ("mqtt", "wire", "membership")  # modules of other tiers are not used
    try:
        require_compiled(tuple(name for name in COMPILED_MODULES if name.split(".")[0] in (*shared, tier)))
    except (NotCompiled, ModuleNotFoundError) as error:
        raise UserError(str(error)) from None


def _check_certificate(tier: str, settings: "NodeConfig") -> None:
    """Fail on an expired or foreign certificate before other nodes refuse it."""
    import datetime

    from wire.links.tls import CertificateFiles, check_certificate

    node = settings.node
    if node.plaintext_links or node.certificate is None or node.key is None or node.authority is None:
        return  # the service reports missing files
    files = CertificateFiles(node.certificate, node.key, node.authority)
    named = "gateway" if tier == "balance" else tier
    check_certificate(files, (node.cluster, named, node.id), datetime.datetime.now(datetime.UTC))


def _prepare_data_dir(folder: Path) -> None:
    from conf.errors import UserError
    from conf.private_files import make_private_folder

    try:
        make_private_folder(folder)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"data folder {folder} cannot be written: {error.strerror or error}") from None


def tell_ready(descriptor: int, addresses: dict[str, object]) -> None:
    """Write the ready line to the parent process."""
    import json

    if descriptor >= 0:
        with contextlib.suppress(OSError), os.fdopen(descriptor, "w") as pipe:
            pipe.write(json.dumps({"ready": True, "addresses": addresses}) + "\n")
    else:
        import logging

        if "login" in addresses:  # contains a code that must not be logged
            print(f"login: {addresses['login']}", flush=True)
        say(logging.getLogger("stratamq"), "node.ready", addresses=json.dumps(addresses))


def _follow_lifeline(descriptor: int) -> None:
    """Stop when the parent process ends, however it ended.

    The kernel signals the end of the pipe. A thread would cost interpreter-lock handovers at each wait of the loop.
    """

    def parent_ended(*_: object) -> None:
        signal.alarm(STOP_S_MAX)  # without a handler it kills a node that does not stop
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGIO, parent_ended)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([descriptor], [], [], 0)[0]:  # ended before that
        parent_ended()
