"""The Routes that the loop keeps, and when one of them has to be looked at again.

A change of subscriptions or peers does not touch the Routes: it raises the loop's generation, and the core judges each
older Route when that is next used. So the work of a change follows the topics in use, not all that are cached.
Source: docs/adr/0023-work-in-slices.md.
"""

import cython

from edge.loop.state import HotState, Route

if not cython.compiled:
    LOOK_UP_BYTES = 16 * 1024  # of a turn's bound, for one look at a Route: about as long as appending so much
    SUBSCRIBER_BYTES = 128  # likewise, for a subscriber of one that was made anew

__all__: list[str] = []


def known_route(hot: HotState, topic: bytes) -> Route | None:
    """Return the Route of a topic that a client may publish with; None: it must be asked for."""
    route: Route | None = hot.routes.get(topic)
    fresh: Route | None
    if route is None:
        return None
    if route.uses < 2:
        route.uses += 1
    if route.generation == hot.generation:
        return route
    fresh = hot.handler.refresh(route)
    hot.turn_bytes += LOOK_UP_BYTES
    if fresh is not None and fresh is not route:
        hot.turn_bytes += SUBSCRIBER_BYTES * len(fresh.subs)
        fresh.uses = route.uses
    return fresh


def local_route(hot: HotState, topic: bytes) -> Route:
    """Return the Route of a forwarded topic: the subscribers at this edge, and nothing else."""
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
