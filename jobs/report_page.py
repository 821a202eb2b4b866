"""The audit's page: one HTML file with inline SVG, nothing loaded from anywhere, light and dark.

Reads the summary as plain data, draws, decides nothing.
"""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Sequence
from typing import Any

from wire.sstable_schema import RowKind

__all__ = ["page"]

_BAR_HEIGHT = 18
_WIDTH = 640
_LABEL = 150
_ROWS_MAX = 40  # bars per plot; the largest are shown and the rest is summed up
_FINDINGS_MAX = 500

_STYLE = """
:root { color-scheme: light dark; --ink:#1c2430; --dim:#5d6b7c; --paper:#fbfcfd; --line:#dde3ea; --now:#2f6fb7;
  --before:#b9c9dc; --bad:#c62f2f; --good:#2c8a52; --warn:#b97a10; }
@media (prefers-color-scheme: dark) { :root { --ink:#e4e9f0; --dim:#93a1b3; --paper:#14181f; --line:#2b333f;
  --now:#6aa5e6; --before:#3d4c60; --bad:#ff6b6b; --good:#5bc98a; --warn:#e0a94a; } }
* { box-sizing: border-box; } body { margin:0; padding:2rem; background:var(--paper); color:var(--ink);
  font:15px/1.5 system-ui, sans-serif; } main { max-width: 1400px; margin: 0 auto; }
h1 { font-size:1.5rem; margin:0; } h2 { font-size:1.05rem; margin:2rem 0 .6rem; } p { margin:.3rem 0; }
.dim { color:var(--dim); } .bad { color:var(--bad); } .good { color:var(--good); } .warn { color:var(--warn); }
.tiles { display:flex; flex-wrap:wrap; gap:.8rem; margin:1rem 0; } .tile { border:1px solid var(--line);
  border-radius:8px; padding:.6rem 1rem; min-width:7rem; } .tile b { display:block; font-size:1.4rem; }
.tile.bad { border-color:var(--bad); } .plots { display:grid; grid-template-columns:repeat(auto-fit,minmax(540px,1fr));
  gap:0 2.5rem; } svg { width:100%; height:auto; } svg text { fill:var(--ink); font-size:12px; }
svg .dim { fill:var(--dim); } .now { fill:var(--now); } .before { fill:var(--before); } .red { fill:var(--bad); }
.wide { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-size:13px; } th, td { text-align:left;
  padding:.3rem .7rem .3rem 0; border-bottom:1px solid var(--line); vertical-align:top; } th { color:var(--dim);
  font-weight:600; } td.key { font-family:ui-monospace, monospace; word-break:break-all; max-width:16rem; }
.key-now::before, .key-before::before { content:""; display:inline-block; width:.8em; height:.8em; margin-right:.4em;
  background:var(--now); } .key-before::before { background:var(--before); margin-left:1em; }
"""


def page(summary: dict[str, Any], findings: Sequence[dict[str, Any]]) -> str:
    """Return the page.

    Args:
        summary: ``jobs.report.summary``.
        findings: Rows of the findings table.
    """
    parts = [
        _head(summary),
        _proof(summary["proof"], summary["proof_shared"], summary["not_proven"]),
        _counts(summary["counts"]),
        '<div class="plots">',
        *_partition_plots(summary["partitions"]),
        *_table_plots(summary["tables"]),
        "</div>",
        _queues(summary["tables"].get("longest_queues", [])),
        _findings(findings),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>StrataMQ audit</title><style>{_STYLE}</style><main>{''.join(parts)}</main></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _head(summary: dict[str, Any]) -> str:
    clean = summary["exit_code"] == 0
    verdict = "no finding" if clean else f"{_number(sum(summary['counts'].values()))} findings"
    lines = []
    for store in summary["inputs"]:
        when = datetime.datetime.fromtimestamp(store["created_ms"] / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(
            f"<p class=dim>{_text(store['input'])}: manifest {store['manifest_no']} of {when} UTC, "
            f"{_number(store['rows'])} rows, {_bytes(store['bytes'])}, {store['files']} files</p>"
        )
    removed = summary["job"]["removed"]
    if removed:
        what = ", ".join(f"{_number(n)} {_text(name)}" for name, n in removed.items())
        lines.append(f"<p class=dim>The last compaction removed {what}.</p>")
    return (
        f"<h1>Audit of {_text(summary['cluster_id'] or 'the store')}: "
        f'<span class="{"good" if clean else "bad"}">{verdict}</span></h1>{"".join(lines)}'
    )


def _proof(proof: dict[str, int] | None, shared: int, not_proven: Sequence[str]) -> str:
    if proof is None:
        return "<h2>Acknowledged messages</h2><p class=dim>No ledgers were given: nothing is proven about messages.</p>"
    tiles = []
    for name, value in proof.items():
        bad = " bad" if name in ("LOST", "DUPLICATED") and value else ""
        tiles.append(f'<div class="tile{bad}"><b class="{bad.strip()}">{_number(value)}</b>{name}</div>')
    of_groups = f"of these, {_number(shared)} taken for shared groups"
    return (
        "<h2>Acknowledged messages</h2><p class=dim>Each acknowledged message, once per durable session that was "
        f'subscribed then; {of_groups}.</p><div class="tiles">{"".join(tiles)}</div>'
        f"<p class=dim>Not proven: {_text('; '.join(not_proven))}.</p>"
    )


def _counts(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    bars = sorted(((name, float(count)) for name, count in counts.items()), key=lambda bar: -bar[1])
    return "<h2>Findings by name</h2>" + _bars(bars, _number, css="red")


def _partition_plots(partitions: list[dict[str, Any]]) -> list[str]:
    plots = []
    legend = "<p class=dim><span class=key-now>now</span><span class=key-before>before the compaction</span></p>"
    for column, title, show in (
        ("bytes", "Size per partition", _bytes),
        ("garbage", "Known garbage per partition: tombstones and expired rows", _number),
        ("generations", "Generations per partition", _number),
    ):
        pairs = [(f"partition {p['partition']}", float(p[column]), p.get(f"{column}_before")) for p in partitions]
        shown = sorted(pairs, key=lambda bar: -max(bar[1], bar[2] or 0))[:_ROWS_MAX]
        shown.sort(key=lambda bar: int(bar[0].split()[1]))
        bars = [(label, now) for label, now, _ in shown]
        before = [old for _, _, old in shown]
        known = any(old is not None for old in before)
        if not any(now or old for _, now, old in shown):
            plots.append(f"<section><h2>{title}</h2><p class=good>none</p></section>")
            continue
        note = f"<p class=dim>the largest {_ROWS_MAX} of {len(pairs)}</p>" if len(pairs) > _ROWS_MAX else ""
        plots.append(
            f"<section><h2>{title}</h2>{legend if known else ''}{note}"
            f"{_bars(bars, show, before if known else None)}</section>"
        )
    return plots


def _table_plots(tables: dict[str, list[dict[str, Any]]]) -> list[str]:
    plots = []
    if tables.get("session_ages"):
        count = {row["tenth"]: row["sessions"] for row in tables["session_ages"]}
        bars = [(f"{10 * n} to {10 * n + 10} % ago", float(count.get(n, 0))) for n in range(10)]
        note = "<p class=dim>last change of the session, in operations of its partition</p>"
        plots.append(f"<section><h2>Sessions by age</h2>{note}{_bars(bars, _number)}</section>")
    if tables.get("session_expiries"):
        names = {-2: "connected, or never", 0: "expired", -1: "later"}
        rows = sorted(tables["session_expiries"], key=lambda row: (row["hours"] < 0, -row["hours"] if row["hours"] < 0
                      else row["hours"]))  # fmt: skip
        bars = [(names.get(r["hours"], f"within {_hours(r['hours'])}"), float(r["sessions"])) for r in rows]
        plots.append(f"<section><h2>Sessions by time until they expire</h2>{_bars(bars, _number)}</section>")
    if tables.get("queue_depths"):
        rows = sorted(tables["queue_depths"], key=lambda row: math.inf if row["up_to"] < 0 else row["up_to"])
        bars = [
            ("more" if r["up_to"] < 0 else "empty" if r["up_to"] == 0 else f"up to {_number(r['up_to'])}",
             float(r["sessions"]))
            for r in rows
        ]  # fmt: skip
        plots.append(f"<section><h2>Sessions by queue depth</h2>{_bars(bars, _number)}</section>")
    if tables.get("kinds"):
        bars = [(_kind_name(r["kind"]), float(r["rows"])) for r in tables["kinds"]]
        plots.append(f"<section><h2>Live rows by kind</h2>{_bars(bars, _number)}</section>")
    return plots


def _hours(hours: int) -> str:
    return f"{hours} h" if hours < 48 else f"{hours // 24} days"


def _kind_name(kind: int) -> str:
    try:
        return RowKind(kind).name.lower().replace("_", " ")
    except ValueError:
        return f"kind {kind}"


def _bars(bars: Sequence[tuple[str, float]], show: Any, before: Sequence[float | None] | None = None,
          css: str = "now") -> str:  # fmt: skip
    """Return horizontal bars, with a paler one behind each for the state before."""
    old = [value or 0.0 for value in before] if before else [0.0] * len(bars)
    largest = max([value for _, value in bars] + old + [1e-9])
    room = _WIDTH - _LABEL - 110
    step = _BAR_HEIGHT + 6
    parts = []
    for number, ((label, value), earlier) in enumerate(zip(bars, old, strict=True)):
        y = number * step
        text = show(value) + (f" (before {show(earlier)})" if before else "")
        now_width, old_width = room * value / largest, room * earlier / largest
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 13}" text-anchor="end">{_text(label)}</text>'
            f'<rect class="before" x="{_LABEL}" y="{y}" width="{old_width:.1f}" height="{_BAR_HEIGHT}" rx="2"/>'
            f'<rect class="{css}" x="{_LABEL}" y="{y + (4 if before else 0)}" width="{now_width:.1f}" '
            f'height="{_BAR_HEIGHT - (8 if before else 0)}" rx="2"/>'
            f'<text class="dim" x="{_LABEL + max(now_width, old_width) + 6:.1f}" y="{y + 13}">{_text(text)}</text>'
        )
    width = _WIDTH + (110 if before else 0)
    height = max(1, len(bars)) * step
    return f'<svg viewBox="0 0 {width} {height}" role="img" style="max-width:{width}px">{"".join(parts)}</svg>'


def _queues(rows: list[dict[str, Any]]) -> str:
    deep = [row for row in rows if row["depth"]]
    if not deep:
        return ""
    cells = "".join(
        f"<tr><td>{_text(row['client_id'])}<td>{row['partition']}<td>{_number(row['depth'])}" for row in deep
    )
    return f"<h2>Longest queues</h2><div class=wide><table><tr><th>client<th>partition<th>entries{cells}</table></div>"


def _findings(findings: Sequence[dict[str, Any]]) -> str:
    if not findings:
        return ""
    rows = []
    for row in findings[:_FINDINGS_MAX]:
        css = "bad" if row["severity"] == "error" else "warn"
        place = "" if row["partition"] < 0 else row["partition"]
        seq = "" if row["seq"] < 0 else row["seq"]
        rows.append(
            f'<tr><td class="{css}">{_text(row["finding"])}<td>{place}<td>{_text(row["file"])}'
            f"<td class=key>{_text(row['key'])}<td>{seq}<td>{_text(row['detail'])}"
        )
    more = (
        f"<p class=dim>{len(findings) - _FINDINGS_MAX} more in the table</p>" if len(findings) > _FINDINGS_MAX else ""
    )
    header = "<tr><th>finding<th>partition<th>file<th>key<th>seq<th>detail"
    return f"<h2>Findings</h2><div class=wide><table>{header}{''.join(rows)}</table></div>{more}"
