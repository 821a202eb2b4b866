"""Every event that a node, a gateway or a service writes to its log: its stable name, its level and its sentence.

A log call names an event and gives the values (``say``), of which the sentence is made. docs/log-events.md is
made from this table; ``tests/test_log_events.py`` fails for a call without an entry and for values that do not fit it.
Names are for machines and stay; sentences are for people and may change.
"""

import logging
import string
from typing import NamedTuple

from conf.urls import mask_urls

__all__ = ["EVENTS", "OTHER", "LogEvent", "fields_of", "say"]

OTHER = "log.other"  # of a library's line: its sentence is its own

NUMBERS = (int, float, type(None))  # values that are shown as they are
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class LogEvent(NamedTuple):
    """One kind of line."""

    level: int  # a call may say a lower one
    sentence: str  # with the names of its values
    is_list: bool = False  # lines of one list: as many as there are, none is left out as a repeat


EVENTS: dict[str, LogEvent] = {
    "admin.collector_down": LogEvent(WARNING, "spans wait: {endpoint} does not take them: {why}"),
    "admin.collector_up": LogEvent(INFO, "spans are sent again: {endpoint} takes them"),
    "admin.host_refused": LogEvent(
        INFO, "refused a request of {address} for host {host}: a name of this service is listed in admin.hosts"
    ),
    "admin.request_failed": LogEvent(ERROR, "{method} {path} failed"),
    "alarm.began": LogEvent(WARNING, "alarm {alarm}: {sentence}; {do}"),
    "alarm.ended": LogEvent(INFO, "alarm {alarm} ended: {sentence}"),
    "audit.failed": LogEvent(ERROR, "{problem}"),
    "audit.written_again": LogEvent(INFO, "the audit is written again"),
    "balance.listener_failed": LogEvent(ERROR, "{problem}"),
    "balance.waits_for_connections": LogEvent(INFO, "waiting for {connections} connections, {seconds:g} s at most"),
    "bridge.dead_letter_dropped": LogEvent(ERROR, "dead letter dropped ({reason}): {text}"),
    "bridge.ended": LogEvent(INFO, "bridge {bridge} has ended"),
    "bridge.exchanges_go_on": LogEvent(INFO, "bridge spool {path}: {exchanges} exchanges go on"),
    "bridge.failed": LogEvent(ERROR, "bridge {bridge} has failed: {why}"),
    "bridge.fault": LogEvent(ERROR, "bridge {bridge}: a fault of the program"),
    "bridge.spool_full": LogEvent(WARNING, "{problem}; the bridge waits"),
    "bridge.spool_has_room": LogEvent(INFO, "the spool {path} has room again"),
    "bridge.stands_by": LogEvent(INFO, "bridge {bridge} stands by"),
    "bridge.takes_over": LogEvent(INFO, "bridge {bridge} takes over"),
    "certificate.ends": LogEvent(WARNING, "certificate {certificate} of {of} ends in {days} days: renew it"),
    "cluster.joined": LogEvent(INFO, "this node belongs to cluster {cluster} ({cluster_id}) from now on"),
    "drain.began": LogEvent(INFO, "draining: {clients} clients are let go at {rate}/s"),
    "drain.done": LogEvent(INFO, "drained: this edge may be stopped"),
    "drain.over": LogEvent(INFO, "the drain is over: clients are taken"),
    "edge.file_limit": LogEvent(INFO, "the file limit of {limit} allows {connections} connections"),
    "export.ended": LogEvent(WARNING, "the export ended: {why}"),
    "federation.bridged_beside": LogEvent(
        WARNING, "a bridge beside the federation joins the brokers of {other} and {agent}"
    ),
    "federation.held_too_long": LogEvent(WARNING, "{neighbour} keeps no message for {seconds:g} s: it is passed by"),
    "federation.link_closed": LogEvent(WARNING, "link to {peer} closed: {why}"),
    "federation.link_refused": LogEvent(INFO, "a connection was refused: {why}"),
    "federation.link_up": LogEvent(INFO, "link to {peer} {how}"),
    "federation.list_failed": LogEvent(WARNING, "the list of subscriptions is not whole: {why}; nothing is taken away"),
    "federation.list_read": LogEvent(INFO, "the list of subscriptions is whole: {filters} filters"),
    "federation.name_taken": LogEvent(WARNING, "another agent has the name {agent}: heard through {neighbour}"),
    "federation.neighbour": LogEvent(INFO, "neighbour {address}: {why}"),
    "federation.not_captured": LogEvent(WARNING, "the broker does not send {topic} back: its captures cannot change"),
    "federation.not_forgotten": LogEvent(WARNING, "{agent} is not forgotten: it can be reached"),
    "federation.not_passed_on": LogEvent(
        WARNING, "{neighbour} has kept {messages} messages for {agent} that did not come on"
    ),
    "federation.spool_full": LogEvent(ERROR, "{problem}: nothing is acknowledged until there is room"),
    "gateway.reference_followed": LogEvent(INFO, "{broker} sends this client to {reference} (Server Reference)"),
    "gateway.reference_refused": LogEvent(
        WARNING, "{broker} sends this client to {reference} (Server Reference), which is not followed: {why}"
    ),
    "gateway.settings_at_restart": LogEvent(INFO, "{title} takes up new settings at a restart"),
    "gossip.dropped": LogEvent(WARNING, "dropped gossip packets: {reasons}"),
    "gossip.ended": LogEvent(ERROR, "gossip ended, the node goes on without it: {why}"),
    "gossip.key_worn": LogEvent(WARNING, "the gossip key has sealed half of what one key may seal: rotate it"),
    "gossip.name_taken": LogEvent(WARNING, "gossip: another process is called {peer}"),
    "gossip.newer_process": LogEvent(ERROR, "a newer process is called {peer}: gossip is silent now"),
    "gossip.no_room": LogEvent(
        WARNING, "gossip has no room for the addresses of: {left_out_nodes} (the map names them)"
    ),
    "ledger.failed": LogEvent(ERROR, "{problem}"),
    "link.begins_anew": LogEvent(WARNING, "the link to {peer} begins anew: the other side forgot it"),
    "link.broke_protocol": LogEvent(WARNING, "{tier} {peer} broke the protocol: {why}"),
    "link.cut": LogEvent(WARNING, "cut a link: {why}"),
    "link.down": LogEvent(INFO, "link to {tier} {peer} is down: {why}"),
    "link.failed": LogEvent(WARNING, "link to {peer}: {why}"),
    "link.forgotten": LogEvent(WARNING, "forgetting the link to {peer}: more than {peers} peers"),
    "link.frame_too_long": LogEvent(ERROR, "a frame of kind {kind} for {peer} has {octets} bytes: not sent"),
    "link.not_dialled": LogEvent(WARNING, "cannot link to {tier} {peer} at {address}: {why}"),
    "link.not_made": LogEvent(DEBUG, "cannot link to {peer} at {address}: {why}"),
    "link.not_read": LogEvent(WARNING, "closing the link of {peer}: it does not read"),
    "link.peers_many": LogEvent(WARNING, "more than {peers} peers are connected"),
    "link.plaintext": LogEvent(
        WARNING, "links on {address} are PLAINTEXT: nodes are not authenticated (node.plaintext_links)"
    ),
    "link.refused": LogEvent(INFO, "refused a link: {why}"),
    "link.up": LogEvent(INFO, "link to {tier} {peer} is up (incarnation {incarnation})"),
    "listener.address_unknown": LogEvent(
        WARNING,
        "listener {listener} is bound to all addresses, and none is known that clients reach: set its `advertise`",
    ),
    "listener.page_refused": LogEvent(
        INFO, "listener {listener} refused a WebSocket of a page of {origin} (Host: {host}): {why}"
    ),
    "listener.paused": LogEvent(INFO, "listener {listener} is paused by {actor}"),
    "listener.resumed": LogEvent(INFO, "listener {listener} takes clients again, by {actor}"),
    "log.other": LogEvent(INFO, ""),
    "login.gateway_refused": LogEvent(INFO, "refused the certificate of gateway {gateway}: {why}"),
    "login.gateways_not_taken": LogEvent(
        INFO, "listeners take no certificates of gateways: {path} may have authorities below it (path length)"
    ),
    "login.hash_failed": LogEvent(WARNING, "a hash was not computed: {why}"),
    "login.keys_failed": LogEvent(ERROR, "keys of tokens at {url}: {problem}; the former ones stay for 24 h"),
    "login.keys_fetched": LogEvent(INFO, "keys of tokens at {url}: fetched again"),
    "login.refused": LogEvent(DEBUG, "login refused with 0x{reason_code:02X}: {why}"),
    "login.server_answers": LogEvent(INFO, "listener {listener}: the server of {setting} answers again"),
    "login.server_fails": LogEvent(
        ERROR, "listener {listener}: the server of {setting} fails: {problem}; it is left alone"
    ),
    "map.command_failed": LogEvent(ERROR, "a committed {command} cannot be carried out"),
    "map.contradicted": LogEvent(
        ERROR,
        "{peer} acts by a {what} that is no state of the routers' log (map epoch {map_epoch}, policy epoch "
        "{policy_epoch}): it reads the whole again",
    ),
    "map.not_proposed": LogEvent(ERROR, "not proposed: {why}"),
    "map.other_cluster": LogEvent(WARNING, "map of another cluster refused: {why}"),
    "map.of_another_log": LogEvent(
        ERROR, "this node's map of epoch {epoch} is no state of the routers' log: starting again"
    ),
    "map.routers_replaced": LogEvent(
        WARNING, "no router of the map is linked: whole maps of {routers}, who answers at node.seeds, are read as well"
    ),
    "map.read_again": LogEvent(WARNING, "the map is read again from its first page: {why}"),
    "map.read_anew": LogEvent(WARNING, "the map is read anew: {why}"),
    "message.refused": LogEvent(WARNING, "refused {what} of {tier} {peer}: {reason}{more}"),
    "message.refused_early": LogEvent(DEBUG, "refused {what} of {tier} {peer}, which has not registered yet: {reason}"),
    "node.handed_over": LogEvent(INFO, "stopped: {outcome}"),
    "node.hands_nothing_over": LogEvent(INFO, "no other {tier} stays: nothing is handed over"),
    "node.incarnation_ended": LogEvent(WARNING, "the map ended this incarnation; starting anew"),
    "node.not_let_in": LogEvent(ERROR, "the routers do not let this node in: {why}"),
    "node.ready": LogEvent(INFO, "ready: {addresses}"),
    "node.routers_replaced": LogEvent(
        WARNING, "no router of this node's map is linked, and {routers} answers at node.seeds: starting again by those"
    ),
    "node.setting_without_effect": LogEvent(WARNING, "node.{setting} = {value} has no effect: {why}"),
    "node.stop_late": LogEvent(WARNING, "not stopped after {seconds:g} s: ended"),
    "node.stopped": LogEvent(INFO, "stopped in order{waits}"),
    "node.waits": LogEvent(WARNING, "waiting: {reason}"),
    "node.waits_no_longer": LogEvent(INFO, "waits no longer"),
    "policy.command_failed": LogEvent(ERROR, "a committed {command} cannot be carried out"),
    "policy.not_proposed": LogEvent(ERROR, "not proposed: {why}"),
    "raft.change": LogEvent(INFO, "raft: {action} {peer}"),
    "raft.change_failed": LogEvent(INFO, "raft: {action} {peer}: {why}"),
    "raft.disk_lost": LogEvent(
        WARNING, "{peer} lost its disk: it learns under a new identity, and votes when it is caught up"
    ),
    "raft.leadership_goes": LogEvent(INFO, "raft: the leadership goes to {peer}"),
    "raft.leadership_stays": LogEvent(INFO, "raft: the leadership does not go to {peer}: {why}"),
    "raft.no_command": LogEvent(ERROR, "an entry of the log is no command, and is passed by: {why}"),
    "raft.other_disk": LogEvent(
        WARNING,
        "the group knows another disk under the name {peer}: this one, new and empty, has no vote until "
        "the leader takes it in as a learner",
    ),
    "raft.role": LogEvent(INFO, "raft: {role}, leader {leader}"),
    "raft.snapshot_refused": LogEvent(
        ERROR,
        "refused the snapshot of router {peer} behind entry {index} ({why}): this router keeps the state that it has",
    ),
    "reload.difference": LogEvent(INFO, "reloaded: {line}", is_list=True),
    "reload.done": LogEvent(INFO, "reloaded: {differences} differences"),
    "reload.files_not_read": LogEvent(WARNING, "files were not looked at: {why}"),
    "reload.mistake": LogEvent(ERROR, "reload refused: {line}", is_list=True),
    "reload.refused": LogEvent(ERROR, "reload refused, the old state stays: {mistakes} mistakes"),
    "replication.catching_up": LogEvent(INFO, "catching up: {whole} of {copies} copies are whole"),
    "replication.caught_up": LogEvent(INFO, "caught up: {copies} copies are whole"),
    "revocation.failed": LogEvent(ERROR, "revocation lists of {of}: {problem}"),
    "revocation.in_order": LogEvent(INFO, "revocation lists of {of}: in order again"),
    "revocation.taken": LogEvent(INFO, "revocation list of {of}: {line}"),
    "signal.end": LogEvent(INFO, "stopping at once on {signal}"),
    "retained.limit_reached": LogEvent(
        WARNING,
        "more than {limit} retained messages match {topic_filter} of client {client}: the rest is not sent; raise "
        "edge.retained_per_subscribe_max, or subscribe to narrower filters",
    ),
    "signal.reload": LogEvent(INFO, "reloading on SIGHUP"),
    "signal.state": LogEvent(INFO, "state: {line}", is_list=True),
    "signal.stop": LogEvent(INFO, "stopping in order on SIGTERM; SIGTERM again, or SIGINT, ends at once"),
    "store.aside_removed": LogEvent(
        WARNING, "an operator removed the store {store} that was put aside: {octets} bytes"
    ),
    "store.full": LogEvent(ERROR, "{problem}; messages are refused (0x97) until there is room"),
    "store.has_room": LogEvent(WARNING, "there is room again; messages are taken"),
    "store.not_closed": LogEvent(ERROR, "closing the store: {why}"),
    "store.put_aside": LogEvent(ERROR, "{problem}; put aside as {path}, rebuilt from the other replicas"),
    "store.read": LogEvent(INFO, "the store is read: {sessions} sessions"),
    "store.reading": LogEvent(INFO, "reading the store: {loaded} of {partitions} partitions"),
    "udp.parent_refuses": LogEvent(WARNING, "the parent refuses this node: {why}"),
    "udp.peer_silent": LogEvent(INFO, "{peer} does not answer, and is not waited for until it speaks"),
    "udp.settings_refused": LogEvent(WARNING, "nothing is taken up: {why}"),
    "udp.settings_taken": LogEvent(INFO, "roles and keys are taken up"),
}


def say(
    logger: logging.Logger, event: str, *, level: int = 0, exc_info: BaseException | bool = False, **fields: object
) -> None:
    """Log an event with its values.

    Args:
        logger: Of the module.
        event: Its name in the table.
        level: Another one than the table's; 0: the table's.
        exc_info: An error whose traceback is wanted; True: the one that is handled.
        fields: The values that its sentence names, and more.
    """
    entry = EVENTS[event]
    level = level or entry.level
    if logger.isEnabledFor(level):
        # An error is kept as its text, which is never empty: it would hold its frames for as long as its line is kept.
        for name, one in fields.items():
            if isinstance(one, BaseException):
                fields[name] = str(one) or type(one).__name__
        sentence = mask_urls(entry.sentence.format_map(fields))
        fields = {name: one if isinstance(one, NUMBERS) else mask_urls(str(one)) for name, one in fields.items()}
        extra = {"event": event, "fields": fields}
        logger.log(level, sentence, extra=extra, exc_info=exc_info or None, stacklevel=2)


def fields_of(sentence: str) -> dict[str, str]:
    """Return the values that an event's sentence names, each with its form there."""
    named = [(name, form) for _, name, form, _ in string.Formatter().parse(sentence) if name is not None]
    return {name: f"{{{name}:{form}}}" if form else f"{{{name}}}" for name, form in named}
