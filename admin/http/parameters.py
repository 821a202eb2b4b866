"""Query parameters: an unknown one is refused before any action.

Otherwise ``dryrun=true`` instead of ``dry_run=true`` would turn a dry run into a change.
"""

import weakref
from collections.abc import Iterable

from litestar.handlers import BaseRouteHandler
from litestar.params import BodyKwarg, CookieParameter, HeaderParameter, ParameterKwarg

from admin.http.problems import Problem

__all__ = ["refuse_unknown"]

NAME_MAX = 64  # characters of a name in a message
# Litestar's reserved names
GIVEN = ("request", "data", "state", "scope", "headers", "cookies", "query", "body", "socket")

_known: weakref.WeakKeyDictionary[BaseRouteHandler, tuple[str, ...]] = weakref.WeakKeyDictionary()


def refuse_unknown(handler: BaseRouteHandler, path_names: Iterable[str], given: Iterable[str]) -> None:
    """Validate the names of a request's parameters.

    Args:
        handler: Of the path.
        path_names: Parameters in the path.
        given: Names in the query string.

    Raises:
        Problem: The path has no such parameter.
    """
    known = _known.get(handler)
    if known is None:
        known = _known[handler] = tuple(_names(handler, {*path_names}))
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        hint = f"there are {', '.join(known)}" if known else "this path takes none"
        raise Problem(400, "bad_request", f"no filter key or parameter {unknown[:NAME_MAX]!r}; {hint}")


def _names(handler: BaseRouteHandler, in_path: set[str]) -> Iterable[str]:
    for name, field in handler.parsed_fn_signature.parameters.items():
        of = field.kwarg_definition
        if name in in_path or name in GIVEN or isinstance(of, BodyKwarg):
            continue
        if not isinstance(of, ParameterKwarg):
            yield name
        elif not (of.header or of.cookie or isinstance(of, HeaderParameter | CookieParameter)):
            yield of.query or name
