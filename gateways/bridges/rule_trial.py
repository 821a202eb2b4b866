"""`bridge try`: results of each bridge's rules for one message, without a connection."""

from __future__ import annotations

from typing import Any

from conf.bridge_config import BridgeConfig
from conf.errors import ExitCode, UserError
from gateways.bridges.kinds import build_all
from gateways.bridges.message import BridgeMessage

__all__ = ["try_message"]


def try_message(config: BridgeConfig, bridge: str, topic: str, payload: bytes, qos: int) -> list[dict[str, Any]]:
    """Return one row for each record, and one for each rule that drops the message.

    Args:
      bridge: Only this one; "" for all.

    Raises:
      UserError: There is no such bridge.
    """
    found = [each for each in build_all(config) if bridge in ("", each.name)]
    if not found:
        raise UserError(f"no bridge {bridge!r}; there are {', '.join(config.bridges)}", ExitCode.USAGE)
    rows: list[dict[str, Any]] = []
    for each in found:
        for flow in each.flows:
            verdict = flow.apply_rules(BridgeMessage(topic, payload, qos))
            row = {"bridge": each.name, "direction": flow.direction}
            for record in verdict.records:
                key = None if record.key is None else record.key.decode(errors="backslashreplace")
                shown = record.payload[:1000].decode(errors="backslashreplace")
                rows.append({**row, "result": "record", "target": record.target, "key": key, "payload": shown})
            rows += [{**row, "result": f"falls: {text}", "target": ""} for text in verdict.dropped_by]
            if verdict.rejected is not None:
                text = f"dead letter: {verdict.rejected.reason}: {verdict.rejected.text}"
                rows.append({**row, "result": text, "target": ""})
            elif not verdict.records and not verdict.dropped_by:
                rows.append({**row, "result": f"dropped: {verdict.dropped}", "target": ""})
    return rows
