"""Decisions of rules about publishing, kept where a message finds them: on the topic's Route, or at the connection.

A decision that holds for a whole class of rights is two bits on the Route. One that depends on the client, or is about
RETAIN, lies in a table of the connection; the newest of a topic stands on the Route as well, for most topics have one
publisher. The epoch of the rules is with all: those of another one are void, so a change of rules visits no connection
and no Route. The rules themselves: ``access/rules``.
"""

import cython

from edge.loop.state import HotState, LoopConnection, Route

if not cython.compiled:
    from edge.loop.layout import NOT_AUTHORIZED, TOPIC_NAME_INVALID

    PLAIN = 0x07  # a bit for each QoS without RETAIN; three more for those with it: Handler.authorize
    RETAINED_SHIFT = 3
    OF_CLASS = 0x40  # the answer about plain publishing holds for all connections of the class
    TOO_DEEP = 0x80  # more levels than this client may name

__all__: list[str] = []


def allowed_route(
    hot: HotState, conn: LoopConnection, route: Route, topic: bytes, qos: cython.int, retain: cython.bint
) -> Route:
    """Return the Route for a message that the rules allow, else one that refuses it.

    A decision that holds for this message and not for the next one of the topic is not remembered with the topic.
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


def _verdicts(hot: HotState, conn: LoopConnection, route: Route, topic: bytes, retain: cython.bint) -> cython.int:
    """Return a bit for each QoS, those with RETAIN behind; the latter are right only where they are asked for."""
    if conn.rights_epoch != hot.rights_epoch:
        conn.rights_epoch = hot.rights_epoch
        conn.rights_bit = 0
        conn.permissions = None
    elif not retain and route.rights_epoch == hot.rights_epoch:
        if route.decided & conn.rights_bit:
            return 0  # what a class may is seen before anything here is called
        if route.asked_by == conn.asks_as:
            return route.asked
    if conn.permissions is not None:
        known = conn.permissions.get(topic)
        if known is not None:
            if not retain:
                _renew(hot, route)
                route.asked_by = conn.asks_as
                route.asked = known
            return known
    return _ask(hot, conn, route, topic, retain)


def _ask(hot: HotState, conn: LoopConnection, route: Route, topic: bytes, retain: cython.bint) -> cython.int:
    verdicts: cython.int = hot.handler.authorize(conn, topic, retain)
    plain: cython.int = verdicts & PLAIN
    if conn.rights_epoch != hot.rights_epoch:
        return verdicts  # the rules moved meanwhile: for this message, and for none after it
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
        route.asked_by = conn.asks_as
        route.asked = verdicts
    return verdicts


def _renew(hot: HotState, route: Route) -> None:
    """Forget what a Route has of other rules."""
    if route.rights_epoch != hot.rights_epoch:
        route.rights_epoch = hot.rights_epoch
        route.decided = 0
        route.allowed = 0
        route.asked_by = 0
