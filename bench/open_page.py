"""An open page of the dashboard: its memory growth, and the delay until it shows a change.

    python -m bench.open_page [--minutes 10] [--page overview] [--changes 10]

Starts a cluster with its HTTP service and traffic, and opens the page in Chromium (Debian's chromium, PyPI's
playwright). Memory is the heap of its scripts after a collection, after half a minute and at the end. A change is a
client that connects while the page Clients is open, until the page has its name. Limits: 10 MB in 10 minutes; 2 s.
"""

import argparse
import statistics
import time
from typing import Any

from tests.clients.paho_client import PahoClient
from tests.e2e.browser_pages import MISSING, Browser, browser
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_prometheus import load, served

SETTLED_S = 30.0
HEADINGS = {"overview": "Overview", "clients": "Clients", "sessions": "Sessions", "storage": "Storage"}


def heap_bytes(window: Browser) -> int:
    """Return the bytes that the page's scripts hold, behind a collection."""
    session: Any = window.page.context.new_cdp_session(window.page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


def changes_s(cluster: LocalCluster, window: Browser, count: int) -> list[float]:
    """Return the delay of each client until the page shows it."""
    window.show("clients", "Clients")
    took = []
    for number in range(count):
        name = f"seen-{number}"
        time.sleep(0.37 * number % 1.0)  # at any time between two polls
        began = time.monotonic()
        client = PahoClient(cluster.port(0, "plain"), name)
        window.page.wait_for_selector(f"main td:has-text('{name}')", timeout=20_000)
        took.append(time.monotonic() - began)
        client.close()
    return took


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--page", choices=sorted(HEADINGS), default="overview")
    parser.add_argument("--changes", type=int, default=10)
    asked = parser.parse_args()
    if MISSING and "axe" not in MISSING:  # the page is not checked here
        raise SystemExit(MISSING)
    with local_cluster("--edges", "2", "--admin-port", "0") as cluster, load(cluster):
        served(cluster)
        login = cluster.state["nodes"]["admin"]["addresses"]["login"]
        with browser(login.partition("#")[0]) as window:
            window.page.goto(login)
            window.page.wait_for_selector("nav a")
            took = changes_s(cluster, window, asked.changes)
            most = max(took)
            print(f"a change is on the page: median {statistics.median(took):.2f} s, most {most:.2f} s (bar 2 s)")
            window.show(asked.page, HEADINGS[asked.page])
            time.sleep(SETTLED_S)
            first = heap_bytes(window)
            time.sleep(asked.minutes * 60)
            last = heap_bytes(window)
            print(
                f"the page {HEADINGS[asked.page]}, open for {asked.minutes:g} minutes: {first / 1e6:.2f} MB, then "
                f"{last / 1e6:.2f} MB: {(last - first) / 1e6:+.2f} MB (bar 10 MB)"
            )


if __name__ == "__main__":
    main()
