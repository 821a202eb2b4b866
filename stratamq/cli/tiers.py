"""``stratamq edge | router | storage``: one node in the foreground.

Loads the configuration, sets up the log, checks the compiled modules, then hands over to the tier's service, which runs
until it is told to stop.
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

STOP_S_MAX = 11  # an orderly stop takes less

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file; see conf/ for the defaults.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="room.key=value, over file and environment.")]
ReadyOption = Annotated[int, typer.Option("--ready-fd", hidden=True, help="One line of JSON is written when ready.")]
LifelineOption = Annotated[int, typer.Option("--lifeline-fd", hidden=True, help="Stop at its end of file.")]


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    for tier, text in (
        ("edge", "Run a connection node: MQTT clients connect here."),
        ("router", "Run a routing node: the cluster's map and topic routes."),
        ("storage", "Run a storage node: durable sessions, queues, retained messages."),
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
    """Run one node until it is told to stop; returns the exit code.

    Raises:
        UserError: Anything an operator can mend.
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
            """Read and judge every source of settings: at the start, and again at each reload."""
            settings = load_config(tier, config, flags)
            check_plaintext(settings)
            if lifeline_fd < 0:  # `up` has one closed folder for all that its nodes keep
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
    """Keep the collector away while modules are loaded: nearly all of that stays, and each look at it takes long."""
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

    shared = ("mqtt", "wire", "membership")  # another tier's modules are not this process's business
    try:
        require_compiled(tuple(name for name in COMPILED_MODULES if name.split(".")[0] in (*shared, tier)))
    except (NotCompiled, ModuleNotFoundError) as error:
        raise UserError(str(error)) from None


def _check_certificate(tier: str, settings: "NodeConfig") -> None:
    """Find an expired or foreign certificate now, and not by other nodes' refusals."""
    import datetime

    from wire.links.tls import CertificateFiles, check_certificate

    node = settings.node
    if node.plaintext_links or node.certificate is None or node.key is None or node.authority is None:
        return  # what is missing is the service's to say
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
    """Write the one line that whoever started this node waits for."""
    import json

    if descriptor >= 0:
        with contextlib.suppress(OSError), os.fdopen(descriptor, "w") as pipe:
            pipe.write(json.dumps({"ready": True, "addresses": addresses}) + "\n")
    else:
        import logging

        if "login" in addresses:  # with a code that no log may have
            print(f"login: {addresses['login']}", flush=True)
        say(logging.getLogger("stratamq"), "node.ready", addresses=json.dumps(addresses))


def _follow_lifeline(descriptor: int) -> None:
    """Stop when whoever started this node is gone, however it ended: nobody is left to stop it otherwise.

    The kernel tells of the pipe's end by a signal. A thread that waits for it would do too, but a process without
    threads need not hand the interpreter lock around whenever its loop waits.
    """

    def gone(*_: object) -> None:
        signal.alarm(STOP_S_MAX)  # nobody handles it: the end of a node that does not stop
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGIO, gone)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([descriptor], [], [], 0)[0]:  # ended before that
        gone()
