"""Chromium over every page of the dashboard, with a real cluster behind it that loses a node and rebalances."""

import json
import os
import shlex
import subprocess
import time
import urllib.parse
from typing import Any

import pytest

from tests.e2e.browser_pages import MISSING, Browser, browser
from tests.e2e.local_cluster import LocalCluster, local_cluster
from tests.e2e.test_prometheus import happenings, load, served
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
ASKED = {  # query parameters of pages that are empty without them
    "client": "?id=absent",
    "topics": "?topic=load/1",
    "message": "?client=writer&packet=1",
    "traces": "?trace=seen",
    "ring": "?plan=1&name=load",
}
EMPTY = {"alarms", "audits", "operations", "slow", "users"}  # pages that may have no row of a table here
DATA = "main table td, main dl dd, main ol.steps li"
LISTED = {"retained": "main table td", "storage": "main table td"}  # pages that show metrics also without rows
NAMES = {  # pages with stable rows, and the key column
    "clients": "client_id",
    "sessions": "client_id",
    "shares": "group",
    "listeners": "listener",
}
NAMED = {  # pages that show a client's own names, where it has such
    *("clients", "client", "topics", "subscriptions", "shares", "sessions", "retained", "routes", "ring"),
    *("drops", "journal", "traces", "users"),
}
WINDOWS = (("light", 1280), ("dark", 1280), ("light", 320), ("dark", 320))


def start_a_trace(window: Browser) -> None:
    """As a person does; the kind is the first that the form offers, and another one."""
    window.show("traces", "Traces")
    form = window.page.locator("main form")
    assert form.locator("select").input_value() == "client"
    form.locator("label:has-text('name') input").fill("typed")
    form.locator("select").select_option("topic")
    form.locator("label:has-text('pattern') input").fill("load/#")
    window.page.keyboard.press("Enter")
    window.page.wait_for_selector("table:has-text('received') td:text-matches('^20[0-9]{2}-[0-9]{2}-[0-9]{2} ')")


def look_at(window: Browser, name: str, heading: str, width: int, by_keyboard: bool) -> None:
    """Check one page."""
    window.show(name + ASKED.get(name, ""), heading)
    assert not window.problems(), f"{name}: {window.problems()}"
    assert not window.violations(), f"{name}: {window.violations()}"
    assert not window.is_wider_than(width), f"{name} is wider than {width}"
    assert not window.policy_reports(), f"{name}: {window.policy_reports()}"
    assert window.page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches")
    assert not window.page.evaluate("document.getAnimations().length"), f"{name} moves"
    if name not in EMPTY:
        has_data(window, name, heading)
    if by_keyboard:
        assert not (stuck := window.walk_by_keyboard()), f"{name}: {stuck}"
        if name == "ring":
            assert window.walk_grid() == window.page.locator(".grid").first.locator("button").count() > 10


def has_data(window: Browser, name: str, heading: str) -> None:
    """Reload while the page reports an unresponsive node; an empty page without an explanation is an error."""
    deadline = time.monotonic() + PATIENCE_S
    while not window.page.locator(LISTED.get(name, DATA)).count():
        assert window.page.locator("main .notice:has-text('Not complete')").count(), f"{name} shows no data"
        assert time.monotonic() < deadline, f"{name} never showed data"
        window.page.reload()
        window.show(name + ASKED.get(name, ""), heading)


@pytest.fixture(scope="module")
def cluster() -> Any:
    with (
        local_cluster("--edges", "3", "--routers", "3", "--storages", "3", "--admin-port", "0") as cluster,
        load(cluster),
    ):
        served(cluster)
        happenings(cluster)
        cluster.admin("ban", "add", "user", "eve")
        cluster.admin("trace", "start", "topic", "load/#", "--name", "seen", "--for", "60m", "--events", "100000")
        yield cluster


@pytest.fixture(scope="module")
def token(cluster: LocalCluster) -> str:
    return str(cluster.admin("token", "create", "a-token", "--role", "admin")["token"])


def log_in(window: Browser, cluster: LocalCluster, token: str) -> None:
    """Log in with a token in the form."""
    window.page.goto(str(cluster.state["nodes"]["admin"]["addresses"]["admin"]))
    field = window.page.get_by_label("token")
    field.wait_for()
    assert not window.violations(), "the form of the login"
    field.fill(token)
    window.page.keyboard.press("Enter")
    window.page.wait_for_selector("nav a")


@pytest.mark.parametrize(("colours", "width"), WINDOWS)
def test_every_page_during_kill_and_rebalance(cluster: LocalCluster, token: str, colours: str, width: int) -> None:
    """In light and dark, at 320 px, by keyboard alone; no foreign requests, an empty console, no axe violations."""
    with browser(str(cluster.state["nodes"]["admin"]["addresses"]["admin"]), colours, width) as window:
        log_in(window, cluster, token)
        if (colours, width) == WINDOWS[0]:
            start_a_trace(window)
        before = cluster.pid("storage-1")
        cluster.kill("storage-1")
        cluster.wait_for(lambda: cluster.is_started_again("storage-1", before), "started again")
        if (colours, width) == ("dark", 1280):
            order = ("ring", "rebalance", "--data", str(cluster.data))  # refused while the copies of before are made
            cluster.wait_for(lambda: cluster.command(*order).returncode == 0, "rebalanced")
        pages = window.pages()
        assert len(pages) > 20
        for name in pages:
            heading = str(window.page.text_content(f"nav a[href='#/{name}']"))
            look_at(window, name, heading, width, (colours, width) == WINDOWS[0])
        assert not window.complaints, set(window.complaints)


def test_copied_commands_return_rows_of_page() -> None:
    """Of each page: the command and curl succeed, and name the rows of its table."""
    with local_cluster("--edges", "2", "--admin-port", "0") as cluster, load(cluster):
        served(cluster)
        happenings(cluster)
        token = str(cluster.admin("token", "create", "copied", "--role", "admin")["token"])
        login = cluster.state["nodes"]["admin"]["addresses"]["login"]
        with browser(login.partition("#")[0]) as window:
            window.page.goto(login)
            window.page.wait_for_selector("nav a")
            start_a_trace(window)
            cluster.admin("trace", "start", "topic", "load/#", "--name", "seen")
            compared = 0
            for name in window.pages():
                heading = str(window.page.text_content(f"nav a[href='#/{name}']"))
                window.show(name + ASKED.get(name, ""), heading)
                line = window.copied("CLI")
                done = cluster.command(*shlex.split(line)[1:], "-o", "json", "--data", str(cluster.data))
                assert done.returncode == 0 or name in {"message", "alarms"}, f"{line}: {done.stderr}"
                asked = ["sh", "-c", window.copied("curl") + " -sS --fail"]
                output = subprocess.run(asked, capture_output=True, check=True, env={**os.environ, "TOKEN": token})
                compared += compare(window, name, json.loads(done.stdout), json.loads(output.stdout))
            assert compared >= 5
            assert not window.complaints, set(window.complaints)


def compare(window: Browser, name: str, shown: Any, output: Any) -> int:
    """Compare the names of a page that lists stable rows; return their number."""
    key = NAMES.get(name)
    if key is None:
        return 0
    by_line, by_curl = ({str(row[key]) for row in answer["rows"]} for answer in (shown, output))
    assert by_line == by_curl and by_curl, f"{name}: {by_line} and {by_curl}"
    cells = window.page.locator("main table td").all_inner_texts()
    assert by_curl <= {cell.strip() for cell in cells}, f"{name}: {by_curl - {*cells}}"
    return len(by_curl)


def test_64_bit_numbers_and_foreign_names_shown_unchanged(cluster: LocalCluster, token: str) -> None:
    """JavaScript rounds the number of a session; markup in names stays text on every page."""
    from tests.clients.paho_client import PahoClient

    name = "<img src=x onerror=alert(1)>"
    client = PahoClient(cluster.port(0, "plain"), name, expiry_s=1)
    for topic_filter in (f"{name}/+", f"$share/{name}/{name}/shared"):
        client.subscribe(topic_filter, 1)
    client.publish(f"{name}/kept", name, 1, retain=True)
    client.publish("$SYS/" + name, name, 0)  # a drop
    for what in (("client", name), ("topic", f"{name}/#")):
        cluster.admin("trace", "start", *what, "--name", f"of-{what[0]}")
    cluster.admin("ban", "add", "user", name, "--reason", name)
    session = str(cluster.admin("session", "show", name)["session"]["session"])
    assert len(session) > 15
    with browser(str(cluster.state["nodes"]["admin"]["addresses"]["admin"])) as window:
        log_in(window, cluster, token)
        window.show("clients", "Clients")
        window.page.get_by_role("link", name=name).click()
        window.page.wait_for_selector(f"dd:text-is('{session}')")
        asked: dict[str, dict[str, object]] = {
            "client": {"id": name},
            "topics": {"topic": f"{name}/kept", "from": name},
            "message": {"client": name, "packet": 1},
            "retained": {"topic": f"{name}/kept"},
            "shares": {"group": name, "filter": f"{name}/shared"},
            "traces": {"trace": "of-topic"},
            "ring": {"name": name},
        }
        shown_on = set()
        for page in window.pages():
            query = urllib.parse.urlencode(asked.get(page, {}))
            heading = str(window.page.text_content(f"nav a[href='#/{page}']"))
            window.show(f"{page}?{query}" if query else page, heading)
            assert not window.page.locator("main img, main script").count() and not window.complaints, page
            if name in window.page.inner_text("main"):
                shown_on.add(page)
        assert shown_on >= NAMED, f"not named on {NAMED - shown_on}"
    client.close()
