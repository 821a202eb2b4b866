"""The Routes that the loop caches, and their check after changes.

A change of subscriptions or peers does not touch the Routes: it increments the loop's generation, and the core checks
each older Route at its next use. So the work of a change depends on the topics in use, not on all cached ones. Source:
docs/adr/0023-work-in-slices.md.
"""

import cython

from edge.loop.state import LoopState, Route

if not cython.compiled:
    ROUTE_CHECK_BYTES = 16 * 1024  # of the byte limit, for one check of a Route: about as long as appending so much
    SUBSCRIBER_BYTES = 128  # of the same limit, for a subscriber of a rebuilt Route

__all__: list[str] = []


def known_route(hot: LoopState, topic: bytes) -> Route | None:
    """Return the Route of a topic for a client's message; None: it must be requested."""
    route: Route | None = hot.routes.get(topic)
    fresh: Route | None
    if route is None:
        return None
    if route.uses < 2:
        route.uses += 1
    if route.generation == hot.generation:
        return route
    fresh = hot.handler.refresh(route)
    hot.iteration_bytes += ROUTE_CHECK_BYTES
    if fresh is not None and fresh is not route:
        hot.iteration_bytes += SUBSCRIBER_BYTES * len(fresh.subs)
        fresh.uses = route.uses
    return fresh


def local_route(hot: LoopState, topic: bytes) -> Route:
    """Return the Route of a forwarded topic: the subscribers at this edge only."""
    route: Route | None = hot.local_routes.get(topic)
    fresh: Route
    if route is not None and route.generation == hot.generation:
        return route
    fresh = hot.handler.local(topic)
    if route is not None and route.subs is fresh.subs:
        route.generation = hot.generation
        return route
    if route is None and len(hot.local_routes) >= hot.routes_max:
        del hot.local_routes[next(iter(hot.local_routes))]
    fresh.generation = hot.generation
    hot.local_routes[topic] = fresh
    return fresh
