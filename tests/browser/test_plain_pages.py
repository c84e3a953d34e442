"""What a person sees where there is nothing to see: an unknown address, a suspended tenant, dialogs
with an error in them; and a first page that stays where it is while it loads."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

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
