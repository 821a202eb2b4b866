"""Requests of a command to the nodes of a running cluster, over its own links.

Finds a router (``wire/links/operator_access.py``), reads the cluster map from it and passes the links to a function.
Reports nodes that did not respond on stderr and in the exit code.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from stratamq.cli.output import printable

if TYPE_CHECKING:
    from admin.queries import Cluster
    from admin.scatter_gather import MissingRows
    from stratamq.cli.node_requests import Options

__all__ = ["TIMEOUT_S", "end_partial", "say_partial", "with_cluster"]

T = TypeVar("T")
TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 30.0


def with_cluster(options: "Options", act: "Callable[[Cluster], Awaitable[T]]", timeout_s: float = TIMEOUT_S) -> T:
    """Run a function with links to the cluster's nodes; return its result.

    Raises:
        UserError: No router is known or responds, or the function raises it; never in an exception group.
        KeyboardInterrupt: Ctrl-C; never in an exception group.
    """
    import trio

    from admin.links import open_links
    from admin.queries import Cluster
    from conf.errors import ExitCode, UserError
    from stratamq.cli.api_requests import refuse_show
    from wire.links.fast_path_run import run_plainly
    from wire.links.operator_access import find_access

    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise UserError(
            f"--timeout {timeout_s:g} is out of range: use more than 0 and at most {TIMEOUT_S_MAX:g} s", ExitCode.USAGE
        )
    refuse_show(options)

    async def run_by_api() -> T:
        from admin.api_links import ApiLinks  # its HTTP imports take a tenth of a command's start time
        from stratamq.cli.api_requests import api_of

        async with trio.open_nursery() as nursery:
            service = ApiLinks(nursery, api_of(options))
            await service.read_map()
            found = await act(Cluster(service, timeout_s))
            nursery.cancel_scope.cancel()
        return found

    async def run() -> T:
        access = find_access(options.router, options.data)
        async with open_links(access.cluster, access.contexts) as links:
            await links.read_map(access.routers)
            return await act(Cluster(links, timeout_s))

    return run_plainly(run_by_api if options.api is not None else run)


def say_partial(partial: "Sequence[MissingRows]", restarted: Sequence[str] = ()) -> None:
    """Report missing rows and restarted nodes on stderr."""
    if partial:
        named = "; ".join(f"{missing.node}: {missing.why}" for missing in partial)
        typer.echo(printable(f"stratamq: result is not complete: {named}"), err=True)
    if restarted:
        typer.echo(
            printable(f"stratamq: rows may be repeated, these nodes restarted: {', '.join(restarted)}"), err=True
        )


def end_partial(partial: "Sequence[MissingRows]", restarted: Sequence[str] = (), *, required: bool = False) -> None:
    """Report missing rows; exit with code 3 if there are any.

    Args:
        partial: Nodes that did not respond.
        restarted: Nodes that restarted during the query.
        required: The caller requires complete rows: exit code 1.
    """
    from conf.errors import ExitCode

    say_partial(partial, restarted)
    if partial:
        raise typer.Exit(ExitCode.FAILED if required else ExitCode.PARTIAL)
