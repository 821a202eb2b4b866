"""Every log event of nodes, gateways and services: stable name, level and sentence.

A log call names an event and passes the values of its sentence (``say``). docs/log-events.md is generated from this
table; ``tests/test_log_events.py`` fails for a call without an entry and for mismatched values. Names are for programs
and stay; sentences are for people and may change.
"""

import logging
import string
from typing import NamedTuple

from conf.urls import mask_urls

__all__ = ["EVENTS", "OTHER", "LogEvent", "fields_of", "say"]

OTHER = "log.other"  # of a library's line, which has its own sentence

NUMBERS = (int, float, type(None))  # values that are shown unchanged
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class LogEvent(NamedTuple):
    """One kind of log line."""

    level: int  # a call may pass a lower one
    sentence: str  # with the names of its values
    is_list: bool = False  # lines of one list: never suppressed as repeats


EVENTS: dict[str, LogEvent] = {
    "admin.collector_down": LogEvent(WARNING, "OTLP export to {endpoint} failed, spans are buffered: {why}"),
    "admin.collector_up": LogEvent(INFO, "OTLP export to {endpoint} works again"),
    "admin.host_refused": LogEvent(
        INFO, "refused a request from {address} for host {host}: list the names of this service in admin.hosts"
    ),
    "admin.request_failed": LogEvent(ERROR, "{method} {path} failed"),
    "alarm.began": LogEvent(WARNING, "alert {alarm}: {sentence}; {do}"),
    "alarm.ended": LogEvent(INFO, "alert {alarm} cleared: {sentence}"),
    "audit.failed": LogEvent(ERROR, "{problem}"),
    "audit.written_again": LogEvent(INFO, "the audit log can be written again"),
    "balance.listener_failed": LogEvent(ERROR, "{problem}"),
    "balance.waits_for_connections": LogEvent(INFO, "waiting for {connections} connections, {seconds:g} s at most"),
    "bridge.dead_letter_dropped": LogEvent(ERROR, "dead letter dropped ({reason}): {text}"),
    "bridge.ended": LogEvent(INFO, "bridge {bridge} ended"),
    "bridge.exchanges_go_on": LogEvent(INFO, "bridge spool {path}: {exchanges} exchanges resumed"),
    "bridge.failed": LogEvent(ERROR, "bridge {bridge} failed: {why}"),
    "bridge.fault": LogEvent(ERROR, "bridge {bridge}: a fault of the program"),
    "bridge.spool_full": LogEvent(WARNING, "{problem}; the bridge waits"),
    "bridge.spool_has_room": LogEvent(INFO, "the spool {path} has room again"),
    "bridge.stands_by": LogEvent(INFO, "bridge {bridge} is on standby"),
    "bridge.takes_over": LogEvent(INFO, "bridge {bridge} took over"),
    "certificate.ends": LogEvent(WARNING, "certificate {certificate} of {of} expires in {days} days: renew it"),
    "cluster.joined": LogEvent(INFO, "this node now belongs to cluster {cluster} ({cluster_id})"),
    "drain.began": LogEvent(INFO, "draining: {clients} clients are let go at {rate}/s"),
    "drain.done": LogEvent(INFO, "drained: this edge can be stopped"),
    "drain.over": LogEvent(INFO, "the drain was cancelled: clients are accepted"),
    "edge.file_limit": LogEvent(INFO, "the file limit of {limit} allows {connections} connections"),
    "export.ended": LogEvent(WARNING, "the export ended: {why}"),
    "federation.bridged_beside": LogEvent(
        WARNING, "a bridge outside the federation connects the brokers of {other} and {agent}"
    ),
    "federation.held_too_long": LogEvent(
        WARNING, "{neighbour} has stored no message for {seconds:g} s: it is bypassed"
    ),
    "federation.link_closed": LogEvent(WARNING, "link to {peer} closed: {why}"),
    "federation.link_refused": LogEvent(INFO, "a connection was refused: {why}"),
    "federation.link_up": LogEvent(INFO, "link to {peer} {how}"),
    "federation.list_failed": LogEvent(WARNING, "the list of subscriptions is not whole: {why}; nothing is taken away"),
    "federation.list_read": LogEvent(INFO, "the list of subscriptions is complete: {filters} filters"),
    "federation.name_taken": LogEvent(WARNING, "another agent uses the name {agent}: announced by {neighbour}"),
    "federation.neighbour": LogEvent(INFO, "neighbour {address}: {why}"),
    "federation.not_captured": LogEvent(WARNING, "the broker does not send {topic} back: its captures cannot change"),
    "federation.not_forgotten": LogEvent(WARNING, "{agent} was not removed: it is reachable"),
    "federation.not_passed_on": LogEvent(
        WARNING, "{neighbour} has kept {messages} messages for {agent} that did not come on"
    ),
    "federation.spool_full": LogEvent(ERROR, "{problem}: no message is acknowledged until there is space"),
    "gateway.reference_followed": LogEvent(INFO, "{broker} redirected this client to {reference} (Server Reference)"),
    "gateway.reference_refused": LogEvent(
        WARNING, "{broker} redirected this client to {reference} (Server Reference), which is not permitted: {why}"
    ),
    "gateway.settings_at_restart": LogEvent(INFO, "{title} applies new settings after a restart"),
    "gossip.dropped": LogEvent(WARNING, "dropped gossip packets: {reasons}"),
    "gossip.ended": LogEvent(ERROR, "gossip ended, the node continues without it: {why}"),
    "gossip.key_worn": LogEvent(
        WARNING, "the gossip key has encrypted half of its maximum number of packets: rotate it"
    ),
    "gossip.name_taken": LogEvent(WARNING, "gossip: another process uses the name {peer}"),
    "gossip.newer_process": LogEvent(ERROR, "a newer process uses the name {peer}: this process stopped gossip"),
    "gossip.no_room": LogEvent(WARNING, "gossip cannot hold the addresses of: {left_out_nodes} (they are in the map)"),
    "ledger.failed": LogEvent(ERROR, "{problem}"),
    "link.begins_anew": LogEvent(WARNING, "the link to {peer} restarts: the other side lost its state"),
    "link.broke_protocol": LogEvent(WARNING, "{tier} {peer} broke the protocol: {why}"),
    "link.cut": LogEvent(WARNING, "closed a link: {why}"),
    "link.down": LogEvent(INFO, "link to {tier} {peer} is down: {why}"),
    "link.failed": LogEvent(WARNING, "link to {peer}: {why}"),
    "link.forgotten": LogEvent(WARNING, "removed the link to {peer}: more than {peers} peers"),
    "link.frame_too_long": LogEvent(ERROR, "a frame of kind {kind} for {peer} has {octets} bytes: too long, not sent"),
    "link.not_dialled": LogEvent(WARNING, "cannot link to {tier} {peer} at {address}: {why}"),
    "link.not_made": LogEvent(DEBUG, "cannot link to {peer} at {address}: {why}"),
    "link.not_read": LogEvent(WARNING, "closing the link to {peer}: it does not read"),
    "link.peers_many": LogEvent(WARNING, "more than {peers} peers are connected"),
    "link.plaintext": LogEvent(
        WARNING, "links on {address} are PLAINTEXT: nodes are not authenticated (node.plaintext_links)"
    ),
    "link.refused": LogEvent(INFO, "refused a link: {why}"),
    "link.up": LogEvent(INFO, "link to {tier} {peer} is up (incarnation {incarnation})"),
    "listener.address_unknown": LogEvent(
        WARNING,
        "listener {listener} is bound to all addresses, and the address for clients is unknown: set its `advertise`",
    ),
    "listener.page_refused": LogEvent(
        INFO, "listener {listener} refused a WebSocket of a page of {origin} (Host: {host}): {why}"
    ),
    "listener.paused": LogEvent(INFO, "listener {listener} is paused by {actor}"),
    "listener.resumed": LogEvent(INFO, "listener {listener} was resumed by {actor}"),
    "log.other": LogEvent(INFO, ""),
    "login.gateway_refused": LogEvent(INFO, "refused the certificate of gateway {gateway}: {why}"),
    "login.gateways_not_taken": LogEvent(
        INFO, "listeners accept no gateway certificates: {path} may have subordinate authorities (path length)"
    ),
    "login.hash_failed": LogEvent(WARNING, "a password hash failed: {why}"),
    "login.keys_failed": LogEvent(
        ERROR, "fetching token keys from {url} failed: {problem}; the former keys are valid for 24 h"
    ),
    "login.keys_fetched": LogEvent(INFO, "token keys were fetched again from {url}"),
    "login.refused": LogEvent(DEBUG, "login refused with 0x{reason_code:02X}: {why}"),
    "login.server_answers": LogEvent(INFO, "listener {listener}: the server of {setting} responds again"),
    "login.server_fails": LogEvent(
        ERROR, "listener {listener}: the server of {setting} fails: {problem}; it is left alone"
    ),
    "map.command_failed": LogEvent(ERROR, "a committed {command} cannot be carried out"),
    "map.contradicted": LogEvent(
        ERROR,
        "{peer} applies a {what} that differs from the routers' log (map epoch {map_epoch}, policy epoch "
        "{policy_epoch}): it reloads the whole state",
    ),
    "map.not_proposed": LogEvent(ERROR, "not proposed: {why}"),
    "map.other_cluster": LogEvent(WARNING, "refused the map of another cluster: {why}"),
    "map.of_another_log": LogEvent(ERROR, "this node's map of epoch {epoch} differs from the routers' log: restarting"),
    "map.routers_replaced": LogEvent(
        WARNING, "no router of the map is connected: whole maps of {routers}, which respond at node.seeds, are read too"
    ),
    "map.read_again": LogEvent(WARNING, "the map is read again from its first page: {why}"),
    "map.read_anew": LogEvent(WARNING, "the map is read again: {why}"),
    "message.refused": LogEvent(WARNING, "refused {what} of {tier} {peer}: {reason}{more}"),
    "message.refused_early": LogEvent(DEBUG, "refused {what} of {tier} {peer}, which has not registered yet: {reason}"),
    "node.handed_over": LogEvent(INFO, "stopped: {outcome}"),
    "node.hands_nothing_over": LogEvent(INFO, "no other {tier} stays: nothing is handed over"),
    "node.incarnation_ended": LogEvent(WARNING, "the map ended this incarnation; restarting"),
    "node.not_let_in": LogEvent(ERROR, "the routers do not let this node in: {why}"),
    "node.ready": LogEvent(INFO, "ready: {addresses}"),
    "node.routers_replaced": LogEvent(
        WARNING, "no router of this node's map is connected, and {routers} responds at node.seeds: restarting with it"
    ),
    "node.setting_without_effect": LogEvent(WARNING, "node.{setting} = {value} has no effect: {why}"),
    "node.stop_late": LogEvent(WARNING, "not stopped within {seconds:g} s: terminated"),
    "node.stopped": LogEvent(INFO, "stopped in order{waits}"),
    "node.waits": LogEvent(WARNING, "waiting: {reason}"),
    "node.waits_no_longer": LogEvent(INFO, "waits no longer"),
    "policy.command_failed": LogEvent(ERROR, "a committed {command} cannot be carried out"),
    "policy.not_proposed": LogEvent(ERROR, "not proposed: {why}"),
    "raft.change": LogEvent(INFO, "raft: {action} {peer}"),
    "raft.change_failed": LogEvent(INFO, "raft: {action} {peer}: {why}"),
    "raft.disk_lost": LogEvent(
        WARNING, "{peer} lost its disk: it rejoins as a learner under a new identity, and votes when it has caught up"
    ),
    "raft.leadership_goes": LogEvent(INFO, "raft: transferring the leadership to {peer}"),
    "raft.leadership_stays": LogEvent(INFO, "raft: the leadership was not transferred to {peer}: {why}"),
    "raft.no_command": LogEvent(ERROR, "skipped an invalid entry of the log: {why}"),
    "raft.other_disk": LogEvent(
        WARNING,
        "the group has another disk under the name {peer}: this new, empty one has no vote until the "
        "leader adds it as a learner",
    ),
    "raft.role": LogEvent(INFO, "raft: {role}, leader {leader}"),
    "raft.snapshot_refused": LogEvent(
        ERROR,
        "refused the snapshot of router {peer} behind entry {index} ({why}): this router keeps the state that it has",
    ),
    "reload.difference": LogEvent(INFO, "reloaded: {line}", is_list=True),
    "reload.done": LogEvent(INFO, "reloaded: {differences} differences"),
    "reload.files_not_read": LogEvent(WARNING, "files were not checked: {why}"),
    "reload.mistake": LogEvent(ERROR, "reload refused: {line}", is_list=True),
    "reload.refused": LogEvent(ERROR, "reload refused, the old state stays: {mistakes} mistakes"),
    "replication.catching_up": LogEvent(INFO, "catching up: {whole} of {copies} copies are complete"),
    "replication.caught_up": LogEvent(INFO, "caught up: {copies} copies are complete"),
    "revocation.failed": LogEvent(ERROR, "revocation lists of {of}: {problem}"),
    "revocation.in_order": LogEvent(INFO, "revocation lists of {of}: in order again"),
    "revocation.taken": LogEvent(INFO, "revocation list of {of}: {line}"),
    "signal.end": LogEvent(INFO, "stopping at once on {signal}"),
    "retained.limit_reached": LogEvent(
        WARNING,
        "more than {limit} retained messages match {topic_filter} of client {client}: the rest is not "
        "sent; raise edge.retained_per_subscribe_max, or subscribe to narrower filters",
    ),
    "signal.reload": LogEvent(INFO, "reloading on SIGHUP"),
    "signal.state": LogEvent(INFO, "state: {line}", is_list=True),
    "signal.stop": LogEvent(INFO, "graceful stop on SIGTERM; SIGTERM again, or SIGINT, stops at once"),
    "store.aside_removed": LogEvent(
        WARNING, "an operator removed the store {store} that was put aside: {octets} bytes"
    ),
    "store.full": LogEvent(ERROR, "{problem}; messages are refused (0x97) until there is space"),
    "store.has_room": LogEvent(WARNING, "there is space again; messages are accepted"),
    "store.not_closed": LogEvent(ERROR, "closing the store failed: {why}"),
    "store.put_aside": LogEvent(ERROR, "{problem}; quarantined as {path}, rebuilt from the other replicas"),
    "store.read": LogEvent(INFO, "the store was read: {sessions} sessions"),
    "store.reading": LogEvent(INFO, "reading the store: {loaded} of {partitions} partitions"),
    "udp.parent_refuses": LogEvent(WARNING, "the parent refuses this node: {why}"),
    "udp.peer_silent": LogEvent(INFO, "{peer} does not respond; it is skipped until it sends again"),
    "udp.settings_refused": LogEvent(WARNING, "settings were refused: {why}"),
    "udp.settings_taken": LogEvent(INFO, "roles and keys were applied"),
}


def say(
    logger: logging.Logger, event: str, *, level: int = 0, exc_info: BaseException | bool = False, **fields: object
) -> None:
    """Log an event with its values.

    Args:
        logger: Of the module.
        event: Its name in the table.
        level: Overrides the table's; 0: the table's.
        exc_info: An error to log with its traceback; True: the current one.
        fields: The values of the sentence, and more.
    """
    entry = EVENTS[event]
    level = level or entry.level
    if logger.isEnabledFor(level):
        # An error is stored as its text, never empty: otherwise it would keep its frames alive while its line is
        # stored.
        for name, one in fields.items():
            if isinstance(one, BaseException):
                fields[name] = str(one) or type(one).__name__
        sentence = mask_urls(entry.sentence.format_map(fields))
        fields = {name: one if isinstance(one, NUMBERS) else mask_urls(str(one)) for name, one in fields.items()}
        extra = {"event": event, "fields": fields}
        logger.log(level, sentence, extra=extra, exc_info=exc_info or None, stacklevel=2)


def fields_of(sentence: str) -> dict[str, str]:
    """Return the values in an event's sentence, each with its format."""
    named = [(name, form) for _, name, form, _ in string.Formatter().parse(sentence) if name is not None]
    return {name: f"{{{name}:{form}}}" if form else f"{{{name}}}" for name, form in named}
