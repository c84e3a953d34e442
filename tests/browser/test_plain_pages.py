"""What a person sees where there is nothing to see: an unknown address, a suspended tenant, dialogs
with an error in them; and a first page that stays where it is while it loads."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from busy_platform import Busy
from page_checks import SHIFT_MAX, WATCH_SHIFTS, settle, violations
from portal_under_test import PortalUnderTest

pytestmark = pytest.mark.browser

SLOW_MS = 120_000


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account")).to_be_visible()


def test_an_unknown_address_is_a_page(page: Page, portal: PortalUnderTest) -> None:
    answer = page.goto("/no/such/page")
    assert answer is not None
    assert answer.status == 404
    sign_in(page, portal.new_tenant("Lost")[1])
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    page.goto("/adapters/x/y/z")
    expect(page.get_by_text("There is no page at /adapters/x/y/z")).to_be_visible()
    assert not violations(page)
    page.get_by_role("link", name="Go to Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_page_without_permission_says_so(page: Page, portal: PortalUnderTest) -> None:
    key = portal.new_tenant("Narrow")[1]
    body = {"name": "books", "scopes": ["usage"]}
    sign_in(page, portal.call(key, "POST", "/v1/api_keys", json=body)["key"])
    for path, name in (("/keys", "Keys"), ("/people", "People")):
        page.goto(path)
        expect(page.get_by_role("heading", name="No access")).to_be_visible()
        expect(page.get_by_role("main")).to_contain_text(f"have access to the page {name}.")
    assert not violations(page)
    page.get_by_role("link", name="Go to Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_days_are_utc_days_wherever_the_browser_is(
    chromium: Browser, portal: PortalUnderTest, busy: Busy
) -> None:
    with chromium.new_context(
        base_url=portal.url,
        timezone_id="America/Los_Angeles",
        viewport={"width": 1320, "height": 900},
    ) as context:
        page = context.new_page()
        page.goto("/")
        sign_in(page, busy.key)
        chart = page.get_by_role("figure", name="Cost by day").first
        expect(chart).to_contain_text("UTC")
        chart.get_by_role("button", name="show as table").click()
        first = datetime.fromisoformat(portal.call(busy.key, "GET", "/v1/forecast")["start"])
        days = chart.get_by_role("rowheader")
        expect(days.first).to_have_text(f"{first.day} {first:%b %Y}")
        expect(chart.get_by_role("columnheader").first).to_have_text("Day (UTC)")
        assert "GMT" not in chart.inner_text()
        served = page.get_by_role("figure", name="Tokens by class")
        expect(served).to_contain_text(re.compile(r"GMT-[78]|P[DS]T"))


def test_an_embedding_is_embedded_and_its_key_has_a_name(
    page: Page, portal: PortalUnderTest
) -> None:
    key = portal.new_tenant("Embedder")[1]
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    portal.call(key, "POST", "/v1/embeddings", json={"model": model, "input": ["a", "b"]})
    deadline = time.monotonic() + SLOW_MS / 1000
    while not (found := portal.call(key, "GET", "/v1/requests")["data"]):
        assert time.monotonic() < deadline, "the request is not in the books"
        time.sleep(0.1)
    sign_in(page, key)
    page.goto("/requests")
    row = page.get_by_role("table", name="Requests").get_by_role("row").nth(1)
    expect(row).to_contain_text("embedding")
    expect(row).to_contain_text("embedded")
    assert "max tokens" not in row.inner_text()
    row.get_by_role("link").click()
    expect(page.get_by_role("main")).to_contain_text("embedded")
    details = page.get_by_role("region", name="Details")
    expect(details).to_contain_text(found[0]["api_key_name"])
    assert not violations(page)


def test_a_suspended_tenant_sees_one_banner(page: Page, portal: PortalUnderTest) -> None:
    tenant, key = portal.new_tenant("Halted")
    sign_in(page, key)
    portal.admin("PATCH", f"/admin/v1/tenants/{tenant}", json={"status": "suspended"})
    for path in ("/overview", "/keys"):
        page.goto(path)
        banner = page.get_by_role("alert")
        expect(banner).to_contain_text("Halted is suspended", timeout=SLOW_MS)
        expect(banner).to_have_count(1)
        settle(page)
        expect(page.get_by_role("main")).not_to_contain_text("Something went wrong")
    portal.admin("PATCH", f"/admin/v1/tenants/{tenant}", json={"status": "active"})
    banner.get_by_role("button", name="Check again").click()
    expect(page.get_by_role("heading", name="Keys")).to_be_visible(timeout=SLOW_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dialogs_and_messages_are_for_everybody(
    page: Page, portal: PortalUnderTest, scheme: Any
) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    sign_in(page, portal.new_tenant("Dialogs")[1])
    page.goto("/adapters")
    page.get_by_role("button", name="Upload").first.click()
    page.get_by_label("Adapter files").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"x"}
    )
    expect(page.get_by_text("No adapter found")).to_be_visible()
    assert not violations(page)
    page.keyboard.press("Escape")
    page.goto("/keys")
    page.get_by_role("button", name="Actions for browser").click()
    page.get_by_role("menuitem", name="Edit").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Close")).to_be_visible()
    name = page.get_by_role("dialog").get_by_label("Key name")
    name.fill("renamed")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not violations(page), "a message with its button"
    page.get_by_role("button", name="Account").click()
    page.get_by_role("menuitem", name="Sign out").click()
    page.get_by_label("Key", exact=True).fill("tn_not_a_key")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert not violations(page), "an error of a field"


def test_the_first_page_of_the_operator_stays_where_it_is(
    chromium: Browser, portal: PortalUnderTest
) -> None:
    context = chromium.new_context(base_url=portal.url, viewport={"width": 1320, "height": 900})
    context.add_init_script(WATCH_SHIFTS)
    page = context.new_page()
    page.goto("/")
    sign_in(page, portal.server.admin_key)
    page.goto("/operator")
    expect(page.get_by_role("region", name="Processes")).to_contain_text("healthy", timeout=SLOW_MS)
    settle(page)
    page.wait_for_function("() => performance.now() > 4000")  # the first live events are there
    assert page.evaluate("window.shifted") < SHIFT_MAX
    context.close()
