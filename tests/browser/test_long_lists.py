"""Lists of thousands in a real browser: only the rows in sight are drawn however far one scrolls,
the server gives them page by page, its search finds one of them, and the keyboard goes
everywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from portal_under_test import PortalUnderTest
from tenora_bench.portal.load import PortalLoad
from tenora_platform.cli.portal_fill import fill

pytestmark = pytest.mark.browser

ADAPTERS, REQUESTS = 600, 1_000
ROWS_MAX = 80
"""A screen of 900 px has 18 to 22 rows, and a dozen are drawn before and after them."""
_LATER_ROW = """([label, before]) => Number([...document.querySelectorAll(
  `table[aria-label="${label}"] tbody tr[aria-rowindex]`)].at(-1)?.ariaRowIndex) > before"""
PAGE_MAX = 100  # rows that one question may ask for


@pytest.fixture(scope="module")
def key(portal: PortalUnderTest) -> str:
    tenant, key = portal.new_tenant("Acme")
    load = PortalLoad(ADAPTERS, REQUESTS, others=0, end=datetime.now(UTC))
    with ThreadPoolExecutor(1) as thread:  # this one has the browser's event loop
        thread.submit(fill, portal.data, tenant, load).result()
    return key


def scrolled_rows(page: Page, label: str, until: int) -> int:
    """The most rows that were in the document at once, on the way to row `until` by the key End."""
    region = page.get_by_role("group", name=label)
    rows = region.locator("tbody tr[aria-rowindex]")
    most = last = 0
    while last < until:
        most = max(most, rows.count())
        region.press("End")
        page.wait_for_function(_LATER_ROW, arg=[label, last + 1])
        last = int(rows.last.get_attribute("aria-rowindex") or 0) - 1
    return max(most, rows.count())


def test_long_lists_draw_what_is_in_sight(page: Page, key: str) -> None:
    asked: list[dict[str, list[str]]] = []
    page.on("request", lambda request: asked.append(_query(request.url)))
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    navigation = page.get_by_role("navigation").first
    navigation.get_by_role("link", name="Adapters").click()
    expect(page.get_by_role("status").filter(has_text="600 adapters")).to_be_visible()
    assert scrolled_rows(page, "Adapters", ADAPTERS) <= ROWS_MAX
    page.get_by_role("table", name="Adapters").get_by_role("link").last.focus()
    page.keyboard.press("Shift+Tab")
    name = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    page.go_back()
    page.get_by_label("Search adapters").fill("adapter-00234")
    expect(page.get_by_role("status").filter(has_text="1 adapter")).to_be_visible()
    expect(page.get_by_role("link", name="adapter-00234")).to_be_visible()

    navigation.get_by_role("link", name="Requests").click()
    assert scrolled_rows(page, "Requests", REQUESTS) <= ROWS_MAX
    limits = [int(each["limit"][0]) for each in asked if "limit" in each]
    after = [each for each in asked if "after" in each]
    assert max(limits) <= PAGE_MAX
    assert len(after) >= ADAPTERS / PAGE_MAX + REQUESTS / PAGE_MAX - 2


def _query(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query)
