"""Cached authorization decisions about publishing, on the topic's Route or at the connection.

A decision for a whole class of rights is two bits on the Route. A decision that depends on the client, or is about
RETAIN, is in a table of the connection. The newest one of a topic is also on the Route, because most topics have one
publisher. All have the epoch of the rules, and other epochs are void: so a change of rules visits no connection and no
Route. ``access/rules`` has the rules.
"""

import cython

from edge.loop.state import LoopConnection, LoopState, Route

if not cython.compiled:
    from edge.loop.layout import NOT_AUTHORIZED, TOPIC_NAME_INVALID

    PLAIN = 0x07  # a bit for each QoS without RETAIN, then three with it: Handler.authorize
    RETAINED_SHIFT = 3
    OF_CLASS = 0x40  # the plain result holds for all connections of the class
    TOO_DEEP = 0x80  # more levels than this client may use

__all__: list[str] = []


def authorize_route(
    hot: LoopState, conn: LoopConnection, route: Route, topic: bytes, qos: cython.int, retain: cython.bint
) -> Route:
    """Return the Route if the rules allow the message, else a Route that refuses it.

    A decision for this message that may not hold for the topic's next one is not cached with the topic.
    """
    verdicts: cython.int = _verdicts(hot, conn, route, topic, retain)
    plain: cython.int = verdicts & PLAIN
    if retain or (plain != 0 and plain != PLAIN):
        conn.last_version = -1
    if verdicts >> (qos + RETAINED_SHIFT if retain else qos) & 1:
        return route
    refusing: Route = Route(topic, reason_code=TOPIC_NAME_INVALID if verdicts & TOO_DEEP else NOT_AUTHORIZED)
    refusing.traced = route.traced
    return refusing


def _verdicts(hot: LoopState, conn: LoopConnection, route: Route, topic: bytes, retain: cython.bint) -> cython.int:
    """Return a bit for each QoS, then those with RETAIN; the latter are valid only for ``retain``."""
    if conn.rights_epoch != hot.rights_epoch:
        conn.rights_epoch = hot.rights_epoch
        conn.rights_bit = 0
        conn.permissions = None
    elif not retain and route.rights_epoch == hot.rights_epoch:
        if route.decided & conn.rights_bit:
            return 0  # the caller has checked the permissions of the class
        if route.cached_authz_key == conn.authz_key:
            return route.cached_verdict
    if conn.permissions is not None:
        known = conn.permissions.get(topic)
        if known is not None:
            if not retain:
                _renew(hot, route)
                route.cached_authz_key = conn.authz_key
                route.cached_verdict = known
            return known
    return _authorize(hot, conn, route, topic, retain)


def _authorize(hot: LoopState, conn: LoopConnection, route: Route, topic: bytes, retain: cython.bint) -> cython.int:
    verdicts: cython.int = hot.handler.authorize(conn, topic, retain)
    plain: cython.int = verdicts & PLAIN
    if conn.rights_epoch != hot.rights_epoch:
        return verdicts  # the rules changed meanwhile: valid for this message only
    if verdicts & OF_CLASS and not retain:
        if conn.rights_bit != 0 and (plain == 0 or plain == PLAIN):
            _renew(hot, route)
            route.decided |= conn.rights_bit
            if plain:
                route.allowed |= conn.rights_bit
        return verdicts
    if conn.permissions is None:
        conn.permissions = {}
    if len(conn.permissions) >= hot.permissions_max:
        conn.permissions.clear()
    conn.permissions[topic] = verdicts
    if not retain:
        _renew(hot, route)
        route.cached_authz_key = conn.authz_key
        route.cached_verdict = verdicts
    return verdicts


def _renew(hot: LoopState, route: Route) -> None:
    """Clear a Route's decisions of other rules."""
    if route.rights_epoch != hot.rights_epoch:
        route.rights_epoch = hot.rights_epoch
        route.decided = 0
        route.allowed = 0
        route.cached_authz_key = 0
