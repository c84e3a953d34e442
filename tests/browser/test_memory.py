"""The memory map in a real browser before a real engine: an adapter is pinned and seen so, cannot
be evicted then, is unpinned and evicted, and its pages leave the map; arrow keys read the map."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from busy_platform import ADAPTERS, add_adapter
from portal_under_test import PortalUnderTest

pytestmark = pytest.mark.browser

SLOW_MS = 60_000


@pytest.fixture(scope="module")
def portal(own_portal: PortalUnderTest) -> PortalUnderTest:
    """All pages of its arena are counted."""
    return own_portal


@pytest.fixture
def acme(portal: PortalUnderTest) -> str:
    """A tenant's id; its adapter support@1 is on the device, its prompt is cached."""
    tenant, key = portal.new_tenant("Acme")
    add_adapter(portal, key, "support", ADAPTERS / "acme-support")
    body = {"model": "support", "prompt": "How do I reach support? " * 20, "max_tokens": 4}
    portal.call(key, "POST", "/v1/completions", json=body)
    return tenant


def on_device(portal: PortalUnderTest) -> list[dict[str, Any]]:
    adapters: list[dict[str, Any]] = portal.admin("GET", "/admin/v1/engine/pages")["adapters"]
    return [each for each in adapters if each["tier"] == "device"]


def act(page: Page, action: str) -> None:
    """Press it at support@1, and confirm."""
    page.get_by_role("button", name=f"{action} support@1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("support@1")
    dialog.get_by_role("button", name=action, exact=True).click()


def pages_in_map(page: Page, what: str) -> list[str]:
    """What the arrow keys read of the first pages of the map."""
    arena = page.get_by_role("application", name=re.compile("^Page arena"))
    arena.focus()
    said = page.get_by_test_id("page-under-cursor")
    found = []
    page.keyboard.press("ArrowRight")
    for number in range(60):
        expect(said).to_contain_text(re.compile(rf"^Page {number}: "))
        found.append(said.inner_text())
        page.keyboard.press("ArrowRight")
    return [text for text in found if what in text]


def test_pin_and_evict_are_seen_in_the_map(page: Page, portal: PortalUnderTest, acme: str) -> None:
    page.get_by_label("Key", exact=True).fill(portal.server.admin_key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Memory").click()
    row = page.get_by_role("row").filter(has_text="support@1")
    expect(row).to_contain_text("Acme")
    (here,) = on_device(portal)
    assert here["tenant_id"] == acme
    shown: Locator = page.get_by_test_id("pages-adapter")
    expect(shown).to_have_text(str(here["pages"]))
    read = pages_in_map(page, "adapter support@1, loaded for Acme")
    assert len(read) == here["pages"] < 60
    expect(page.get_by_test_id("departures")).to_contain_text("adapter support@1")

    act(page, "Pin")
    expect(row).to_contain_text("pinned", timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Evict support@1")).to_have_count(0)
    expect(page.get_by_test_id("departures")).not_to_contain_text("adapter support@1")
    assert [each["pinned"] for each in on_device(portal)] == [True]

    act(page, "Unpin")
    expect(row).not_to_contain_text("pinned", timeout=SLOW_MS)
    act(page, "Evict")
    expect(shown).to_have_text("0", timeout=SLOW_MS)
    expect(page.get_by_text("No adapter is in device memory")).to_be_visible(timeout=SLOW_MS)
    assert on_device(portal) == []
    assert pages_in_map(page, "adapter") == []
    actions = portal.admin("GET", "/admin/v1/audit_logs")["data"]
    assert [each["action"] for each in actions[:3]] == [
        "adapter_version.evict",
        "adapter_version.unpin",
        "adapter_version.pin",
    ]


def test_the_map_has_an_equal_table_and_an_hour_behind_it(
    page: Page, portal: PortalUnderTest, acme: str
) -> None:
    page.get_by_label("Key", exact=True).fill(portal.server.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="Memory")).to_be_visible()
    page.goto("/operator/memory?mode=next")
    page.get_by_role("radiogroup", name="View").get_by_text("Table").click()
    table = page.get_by_role("table", name="Page ranges")
    expect(table.get_by_role("row").filter(has_text="Cached KV").first).to_contain_text("Acme")
    counts = portal.admin("GET", "/admin/v1/engine/pages")["counts"]
    cells = table.get_by_role("row").filter(has_text="Free").locator("td:nth-child(2)")
    free = [int(text.replace(",", "")) for text in cells.all_inner_texts()]
    assert sum(free) == counts["free"]
    slider = page.get_by_role("slider", name="Time shown")
    expect(slider).to_be_visible(timeout=SLOW_MS)
    slider.focus()
    page.keyboard.press("Home")
    expect(page.get_by_text("as of")).to_be_visible()
    expect(page.get_by_role("heading", name="Adapters by tier")).to_have_count(0)
    page.get_by_role("button", name="Show current state").click()
    expect(page.get_by_text("as of")).to_have_count(0)


PAINTED = """(canvas) => {
  const {width, height} = canvas;
  const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);
  const found = new Set();
  for (let at = 0; at < data.length; at += 4)
    found.add(`rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`);
  return [...found];
}"""


def test_a_tenant_has_one_colour_on_every_page(
    page: Page, portal: PortalUnderTest, acme: str
) -> None:
    page.get_by_label("Key", exact=True).fill(portal.server.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="Memory")).to_be_visible()
    # Of several tenants with the same adapter it is on the device for one.
    owner = on_device(portal)[0]["tenant_id"]
    colours: dict[str, str] = {}
    for path in ("/operator/tenants", "/operator/requests", "/operator/fairness"):
        page.goto(path)
        row = page.locator(f'tr:has(a[href="/operator/tenants/{owner}"])').first
        dot = row.locator("span[aria-hidden]").first
        colours[path] = dot.evaluate("(each) => getComputedStyle(each).backgroundColor")
    (colour,) = set(colours.values())
    page.goto("/operator/memory?mode=tenant")
    arena = page.get_by_role("application", name=re.compile("^Page arena"))
    expect(page.get_by_test_id("pages-adapter")).not_to_have_text("0")
    assert colour in arena.locator("canvas").evaluate(PAINTED)
