"""The table of the durable path: medians of several runs per row, and the meaning of each broker's acknowledgement."""

import statistics

__all__ = ["Table"]

GUARANTEES = (
    "StrataMQ acknowledges a message when it is synced to the disk of every copy in sync: whatever process or machine"
    " dies then, it is delivered. Mosquitto with persistence acknowledges what stands in its memory and writes its file"
    " at intervals: what it acknowledged since then dies with the process."
)


class Table:
    """Results by row, in the order of their first run."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, list[float]]] = {}

    def add(self, row: str, **figures: float) -> None:
        """Add the results of one run of a row."""
        kept = self._rows.setdefault(row, {})
        for name, value in figures.items():
            kept.setdefault(name, []).append(value)

    def median(self, row: str, figure: str) -> float:
        """Return the median of a result over the runs."""
        return statistics.median(self._rows[row][figure])

    def markdown(self, about: str) -> str:
        """Return all rows as a page; rates and times come first, costs are per message (or CONNECT)."""
        lines = [
            about,
            "",
            "| row | msg/s (CONNECT/s) | latency, drain | rows | syncs | us of processor |",
            "|" + "---|" * 6,
        ]
        for row, figures in self._rows.items():
            rate = figures.get("msg/s", [])
            spread = f" ({min(rate):,.0f} - {max(rate):,.0f})" if len(rate) > 1 else ""
            times = [name for name in figures if name.endswith((" ms", " s"))]
            costs = [name for name in figures if name.endswith(" us")]
            cells = [
                row,
                f"{self.median(row, 'msg/s'):,.0f}{spread}",
                ", ".join(
                    f"{name.rpartition(' ')[0]} {self.median(row, name):.1f} {name.rpartition(' ')[2]}"
                    for name in times
                ),
                f"{self.median(row, 'rows'):.2f}" if "rows" in figures else "",
                f"{self.median(row, 'syncs'):.4f}" if "syncs" in figures else "",
                ", ".join(f"{name[:-3]} {self.median(row, name):.1f}" for name in costs),
            ]
            if any(figures.get("dropped", [])):
                cells[0] += f" ({sum(figures['dropped']):.0f} DROPPED)"
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, "", GUARANTEES, ""])
