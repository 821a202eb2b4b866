"""Interest at Mosquitto, from its log published by ``log_dest topic``.

Needs ``log_type subscribe``, ``unsubscribe`` and ``notice``, and ``connection_messages true``. Lines are::

  $SYS/broker/log/M/subscribe     <time>: <client> <qos> <filter>
  $SYS/broker/log/M/unsubscribe   <time>: <client> <filter>
  $SYS/broker/log/N               <time>: New client connected from A:P as <client> (p2, c1, k60).
                  <time>: Client <client> disconnected.    and similar texts

Client identifiers and filters may contain spaces, so a line may have several readings. Each reading of a subscription
counts; an ambiguous unsubscription or disconnection is ignored. A line of 1 000 bytes is truncated: the filter counts
up to its last complete level, followed by ``#``. The time has any format, or is missing; the line of the agent's own
subscription shows how many ``: `` it contains. Source: Mosquitto 1.6 to 2.1, src/logging.c, src/subs.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateways.federation.interest.interest import Interest

__all__ = ["MosquittoLog"]

SUBSCRIBE, UNSUBSCRIBE = "$SYS/broker/log/M/subscribe", "$SYS/broker/log/M/unsubscribe"
NOTICE = "$SYS/broker/log/N"
CUT_BYTES = 999  # of a possibly truncated line
LOG_EXPIRY_S = 20.0  # Mosquitto's expiry of log messages
SEPARATOR = ": "
QOS = re.compile(r" ([012]) ")
CONNECTED = re.compile(
    r"New (?:client|bridge) connected from \S+ as (.*) \(p(\d+), c([01]), k\d+(?:, u'.*')?\)\.?$", re.S
)
LEFT = re.compile(r"(?:Client|Bridge|Socket error on client) ")
ENDINGS = re.compile(
    r"(?: \[\S*\])?(?: disconnected\.| closed its connection\.| has exceeded timeout, disconnecting\.|, disconnecting\."
    r"| disconnected: .*| disconnected due to .*| disconnected, .*)$",
    re.S,
)
EXPIRED = re.compile(r"Expiring (?:persistent )?client (.*) due to timeout\.?$", re.S)
VERSION_5 = 5


class MosquittoLog:
    """An ``Adapter``.

    Args:
      interest: Receives the changes.
      client_id: Of the agent at the broker.
    """

    filters = (SUBSCRIBE, UNSUBSCRIBE, NOTICE)

    def __init__(self, interest: Interest, client_id: str) -> None:
        self.interest = interest
        self._client_id = client_id
        self._separators = 1  # number of ": " in the time, including the last one
        self._disconnected_since: float | None = None

    def accepts(self, topic: str) -> bool:
        """Whether a message is a line of the log."""
        return topic.startswith("$SYS/broker/log/")

    def disconnected(self, wall_s: float) -> None:
        """Record the disconnection of the agent."""
        self._disconnected_since = wall_s if self._disconnected_since is None else self._disconnected_since

    def reconnected(self, wall_s: float, is_present: bool) -> bool:
        """Record the reconnection; return whether lines may have been missed."""
        since, self._disconnected_since = self._disconnected_since, None
        if since is None or (is_present and wall_s - since <= LOG_EXPIRY_S):
            return False
        self.interest.record_gap(wall_s)
        return True

    def received(self, wall_s: float, topic: str, payload: bytes) -> None:
        """Handle one line."""
        interest = self.interest
        interest.counts["lines"] += 1
        is_cut = len(payload) >= CUT_BYTES
        line = payload.decode("utf-8", "replace")
        if topic == SUBSCRIBE:
            self._learn_time(line)
            self._subscribed(self._strip_time(line), is_cut)
        elif topic == UNSUBSCRIBE:
            if not is_cut:
                self._unsubscribed(self._strip_time(line))
        elif topic == NOTICE and not is_cut:
            self._notice(wall_s, self._strip_time(line))

    def _learn_time(self, line: str) -> None:
        for topic_filter in self.filters:
            own = f"{self._client_id} 2 {topic_filter}"
            if line.endswith(own) and "\x00" not in line:
                time = line[: -len(own)]
                if not time or time.endswith(SEPARATOR):
                    self._separators = time.count(SEPARATOR)

    def _strip_time(self, line: str) -> str:
        """Return a line without its time."""
        parts = line.split(SEPARATOR, self._separators)
        return parts[-1] if len(parts) > self._separators else line

    def _subscribed(self, text: str, is_cut: bool) -> None:
        readings = [(text[: at.start()], int(at[1]), text[at.end() :]) for at in _find_overlapping(QOS, text)]
        if not readings:
            self.interest.counts["unreadable"] += 1
        for client, qos, topic_filter in readings:
            if is_cut:
                self.interest.counts["cut_lines"] += 1
                topic_filter = f"{topic_filter.rpartition('/')[0]}/#" if "/" in topic_filter else "#"
            self.interest.subscribed(client, topic_filter, qos)

    def _unsubscribed(self, text: str) -> None:
        """End a known subscription, if only one reading of the line is known."""
        splits = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == " "]
        known = [each for each in splits if self.interest.has(*each)]
        if len(known) == 1:
            self.interest.unsubscribed(*known[0])
        elif known:
            self.interest.counts["doubtful_lines"] += 1

    def _notice(self, wall_s: float, text: str) -> None:
        if found := CONNECTED.search(text):
            client, version, clean = found[1], int(found[2]), found[3] == "1"
            self.interest.connected(client, is_persistent=not clean)
            if clean and version >= VERSION_5:  # its Session Expiry Interval is not logged
                self.interest.assume_persistent(client)
        elif found := EXPIRED.search(text):
            self.interest.session_ended(found[1])
        elif found := LEFT.match(text):
            clients = {text[found.end() : at.start()] for at in _find_overlapping(ENDINGS, text)}
            known = [each for each in sorted(clients) if self.interest.is_known(each)]
            if len(known) == 1:
                self.interest.disconnected(wall_s, known[0])
            elif known:
                self.interest.counts["doubtful_lines"] += 1


def _find_overlapping(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield all matches, including overlapping ones."""
    at = 0
    while found := pattern.search(text, at):
        yield found
        at = found.start() + 1
