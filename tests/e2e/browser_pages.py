"""Open dashboard pages in Chromium and record forbidden requests and errors; axe-core checks accessibility."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["MISSING", "Browser", "browser"]

CHROMIUM = shutil.which("chromium") or ""
ROOT = Path(__file__).parents[2]
WATCH = """
window.told = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.told.push(`${event.violatedDirective} ${event.blockedURI}`);
});
"""
FOCUSED = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return "";
  const box = at.getBoundingClientRect();
  const style = getComputedStyle(at);
  if (!box.width || style.outlineStyle === "none") return `unseen ${at.outerHTML.slice(0, 80)}`;
  window.reached = window.reached || new Set();
  window.reached.add(at);
  return at.outerHTML.slice(0, 80);
}"""
UNREACHED = """() => [...document.querySelectorAll("a[href], button, input, select, [tabindex='0']")]
  .filter((one) => !one.disabled && one.tabIndex >= 0 && one.checkVisibility())
  .filter((one) => !(window.reached || new Set()).has(one))
  .map((one) => one.outerHTML.slice(0, 80))"""
TABS_MAX = 700


def _axe() -> Path | None:
    places = [Path(os.environ.get("AXE_CORE", "")), ROOT / "node_modules" / "axe-core" / "axe.min.js"]
    with contextlib.suppress(OSError):
        shared = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=False).stdout.strip()
        places.append(Path(shared) / "axe-core" / "axe.min.js")
    return next((place for place in places if place.is_file()), None)


def _missing() -> str:
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not here: PyPI's package playwright"
    if not CHROMIUM:
        return "chromium is not here: Debian's package chromium"
    return "" if _axe() else "axe-core is not here: npm's package axe-core, in node_modules, global or by AXE_CORE"


MISSING = _missing()  # why such a test is skipped, "" if it runs


class Browser:
    """One window.

    Attributes:
        complaints: Console messages, errors, content policy reports and requests to other hosts, in order.
    """

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.complaints: list[str] = []
        page.add_init_script(WATCH)
        page.on("console", lambda message: self.complaints.append(f"console: {message.text} {message.location}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:")):
            self.complaints.append(f"foreign: {request.url}")

    def show(self, place: str, heading: str) -> None:
        """Go to a page of the address behind the #, and wait until its nodes have answered."""
        self.page.goto(f"{self.base}#/{place}")
        self.page.wait_for_function(
            "(heading) => document.querySelector('h1')?.textContent === heading"
            " && ![...document.querySelectorAll('p[role=status]')].some((one) => one.textContent.includes('…'))",
            arg=heading,
        )

    def pages(self) -> list[str]:
        """Return the names of the pages, as the navigation has them."""
        links = self.page.eval_on_selector_all("nav a", "(all) => all.map((one) => one.getAttribute('href'))")
        return [link.removeprefix("#/") for link in links]

    def copied(self, way: str) -> str:
        """Press "copy as CLI" or "copy as curl", and return the clipboard's text."""
        self.page.get_by_role("button", name=f"copy as {way}", exact=True).click()
        self.page.wait_for_selector("footer [role=status]:has-text('copied')")
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text

    def violations(self) -> list[str]:
        """Return the violations that axe finds."""
        axe = _axe()
        assert axe is not None
        self.page.evaluate(axe.read_text() + ";0")
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        nodes = [(one["id"], node) for one in found for node in one["nodes"]]
        return [f"{rule}: {node['html'][:200]} {node['failureSummary'][:300]}" for rule, node in nodes]

    def policy_reports(self) -> list[str]:
        """Return the actions that the content policy blocked."""
        reports: list[str] = self.page.evaluate("window.told")
        return reports

    def is_wider_than(self, width: int) -> bool:
        """Return whether the page has to be moved sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth") > width)

    def problems(self) -> list[str]:
        """Return the errors that the page shows."""
        shown: list[str] = self.page.eval_on_selector_all(".problem", "(all) => all.map((one) => one.textContent)")
        return shown

    def walk_grid(self) -> int:
        """Go through the first grid of buttons by its arrows; return how many of them show the focus."""
        grid = self.page.locator(".grid").first
        grid.locator("[tabindex='0']").focus()
        self.page.keyboard.press("Home")
        count = grid.locator("button").count()
        seen = set()
        for _ in range(count):
            assert not self.page.evaluate(FOCUSED).startswith("unseen")
            seen.add(self.page.evaluate("document.activeElement.textContent"))
            self.page.keyboard.press("ArrowRight")
        return len(seen)

    def walk_by_keyboard(self) -> list[str]:
        """Press Tab through the page; return elements that are unreachable or show no focus."""
        self.page.evaluate("() => { window.reached = new Set(); document.activeElement.blur(); }")
        bad, seen = [], 0
        for _ in range(TABS_MAX):
            self.page.keyboard.press("Tab")
            at = self.page.evaluate(FOCUSED)
            if at.startswith("unseen"):
                bad.append(at)
            if not at and seen:
                break
            seen += bool(at)
        unreached: list[str] = self.page.evaluate(UNREACHED)
        return bad + [f"unreached {one}" for one in unreached]


@contextlib.contextmanager
def browser(base: str, colours: Any = "light", width: int = 1280, *, state: Any = None) -> Iterator[Browser]:
    """Open a browser window without stored state, or with that of another window (``state``)."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            context = chromium.new_context(
                color_scheme=colours,
                viewport={"width": width, "height": 900},
                storage_state=state,
                reduced_motion="reduce",
                permissions=["clipboard-read", "clipboard-write"],
            )
            yield Browser(context.new_page(), base)
        finally:
            chromium.close()
