"""What every page of the portal has to be, whoever made it: no violation that axe-core finds,
nothing beside the window's width, one heading, a title. Knows no page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from portal_under_test import REPOSITORY

AXE = REPOSITORY / "admin_ui" / "node_modules" / "axe-core" / "axe.min.js"
ROUTES = REPOSITORY / "admin_ui" / "src" / "routes.tsx"
WIDTHS = (390, 768, 1280, 1920)
_TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
_RUN = "(only) => axe.run(document, {resultTypes: ['violations'], runOnly: only})"
_ALL = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
_COLOURS = {"type": "rule", "values": ["color-contrast"]}


@dataclass(frozen=True)
class PagePath:
    """A page of the portal's own table, `side` tenant or admin; parameters as `:name`."""

    side: str
    path: str


@cache
def pages() -> list[PagePath]:
    """Those of admin_ui/src/routes.tsx, in its order."""
    text = ROUTES.read_text()
    tenants, operators = text.index("  tenant: ["), text.index("  admin: [")
    assert tenants < operators
    found = re.finditer(r'page\(\s*"(/[^"]*)"', text[tenants:])
    return [
        PagePath("tenant" if tenants + each.start() < operators else "admin", each.group(1))
        for each in found
    ]


WATCH_SHIFTS = """(() => {
  window.shifted = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifted += each.value;
  }).observe({type: 'layout-shift', buffered: true});
  const asked = window.fetch.bind(window);
  let count = 0;
  window.pending = 0;
  window.calmSince = 0;
  window.fetch = async (...of) => {
    const late = 70 * (1 + (5 * count++) % 7);
    window.pending++;
    try {
      const answer = await asked(...of);
      await new Promise((done) => setTimeout(done, late));
      return answer;
    } finally {
      window.pending--;
      window.calmSince = performance.now();
    }
  };
})()"""
"""For a context's start: adds up by how much what stands on the page is moved. Answers come one by
one and in another order than they were asked for, so that none of them hides behind another."""

SHIFT_MAX = 0.1
"""The cumulative layout shift that web.dev calls good."""


def shifted(page: Page) -> float:
    """The layout shift of a page since it was opened, once all of it has come."""
    settle(page)
    page.wait_for_function(
        "() => window.pending === 0 && performance.now() - window.calmSince > 300"
    )
    settle(page)  # what came last may have asked for more
    return float(page.evaluate("window.shifted"))


def violations(page: Page, *, colours_only: bool = False) -> list[str]:
    """Each with its rule and what it was found at. `colours_only`: what another theme of the same
    page may have changed."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())  # past the policy for contents, which a script tag is not
    result: dict[str, Any] = page.evaluate(_RUN, _COLOURS if colours_only else _ALL)
    return [
        f"{found['id']} ({found['impact']}): "
        + "; ".join(
            f"{' '.join(map(str, node['target']))}: "
            + " ".join(check["message"] for check in node["any"][:1])
            for node in found["nodes"][:4]
        )
        for found in result["violations"]
    ]


WATCH_NUMBERS = """(() => {
  const asked = window.fetch.bind(window);
  window.amountsTold = new Set();
  window.countsTold = new Set();
  const keep = (text) => {
    for (const [, amount] of text.matchAll(/"(-?\\d+(?:\\.\\d+)?)"/g))
      window.amountsTold.add(amount);
    for (const [count] of text.matchAll(/\\d{3,}/g)) window.countsTold.add(count);
  };
  const follow = async (stream) => {
    let line = '';
    for await (const text of stream.pipeThrough(new TextDecoderStream())) {
      const lines = (line + text).split('\\n');
      line = lines.pop();
      lines.forEach(keep);
    }
  };
  window.fetch = async (...of) => {
    const answer = await asked(...of);
    const type = answer.headers.get('content-type') ?? '';
    if (type.includes('json')) keep(await answer.clone().text());
    if (type.includes('event-stream')) follow(answer.clone().body).catch(() => {});
    return answer;
  };
})()"""
"""For a context's start: keeps each decimal and each whole number of three digits or more that an
answer or a stream of events has had, before the page sees it."""


def amounts(page: Page) -> dict[str, bool]:
    """Each amount of money in the page's text, and whether an answer has had it, digit by digit:
    else the page has added up or rounded by itself. Axes of charts are pictures, and not in it."""
    shown = re.findall(r"[$€£]([\d,]+(?:\.\d+)?)", page.inner_text("main"))
    told = {abs(Decimal(each)) for each in page.evaluate("[...window.amountsTold]")}
    return {each: Decimal(each.replace(",", "")) in told for each in shown}


_COUNT = re.compile(
    r"(?<![\w.,:/#@$€£+-])(\d{1,3}(?:,\d{3})+|\d{3,})(?![\w.,:/%-])(?! *(?:ms|s|B|[KMGT]iB)\b)"
)
_NO_COUNT = re.compile(r"\b[A-Z][a-z]{2,8} \d{4}\b|/ 1,000,000\b|\bRFC \d+")
"""A month's year, the unit of prices, a standard."""


def counts(page: Page) -> dict[str, bool]:
    """Each whole number of three digits or more in the page's text that is no time and no size, and
    whether an answer has had it: else the page has counted by itself."""
    shown = _COUNT.findall(_NO_COUNT.sub("", page.inner_text("main")))
    told = set(page.evaluate("[...window.countsTold]"))
    return {each: each.replace(",", "") in told for each in shown}


def sideways(page: Page) -> int:
    """How many pixels the page is wider than its window, once charts have taken their new size."""
    try:
        page.wait_for_function(f"() => {_TOO_WIDE} <= 0", timeout=1_500)
    except PlaywrightTimeout:
        return int(page.evaluate(_TOO_WIDE))
    return 0


def go_to(page: Page, address: str) -> None:
    """Opens a page as a link within the portal does, without loading the portal again, and waits
    until it has its title: the one before stays while its script comes."""
    before = page.title()
    is_another = urlsplit(page.url).path != urlsplit(address).path
    page.evaluate(
        "(to) => { history.pushState({}, '', to); dispatchEvent(new PopStateEvent('popstate')); }",
        address,
    )
    if is_another:
        page.wait_for_function("(before) => document.title !== before", arg=before)


def settle(page: Page) -> None:
    """Waits until a page shows no skeleton and no loader any more."""
    page.wait_for_selector("h1", timeout=15_000)
    page.wait_for_function(
        "() => !document.querySelector('main [aria-busy=true], main [class*=Skeleton-root]')",
        timeout=15_000,
    )
