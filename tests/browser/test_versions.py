"""Before a new version takes the traffic the portal says so, and the way back needs no alias; what
serves is deleted by who has read what that ends."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Page, expect

from busy_platform import add_adapter
from portal_under_test import REPOSITORY, PortalUnderTest

pytestmark = pytest.mark.browser

EXAMPLE = REPOSITORY / "examples" / "adapters" / "acme-support"
SLOW_MS = 120_000
CHAT = {"model": "bot", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture
def key(page: Page, portal: PortalUnderTest) -> str:
    """Of a tenant whose adapter `bot` has one version; it is signed in."""
    _, key = portal.new_tenant(f"Versions {id(page)}")
    add_adapter(portal, key, "bot", EXAMPLE)
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account")).to_be_visible()
    return key


def asked(portal: PortalUnderTest, key: str) -> str:
    """Which version answers to the bare name."""
    headers = {"authorization": f"Bearer {key}"}
    url = f"{portal.url}/v1/chat/completions"
    answer = httpx.post(url, json=CHAT, headers=headers, timeout=60).raise_for_status()
    return answer.headers["x-tenora-adapter"]


def upload(page: Page, choice: str) -> None:
    page.goto("/adapters/bot")
    page.get_by_role("button", name="Upload version").click()
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Upload", exact=True)
    expect(dialog.get_by_text("bot currently serves v1")).to_be_visible()
    expect(dialog.get_by_text("it receives 100% of the requests for bot")).to_be_visible()
    expect(button).to_be_disabled()
    dialog.get_by_label("Adapter folder").set_input_files(EXAMPLE)
    dialog.get_by_label(choice).check()
    expect(dialog.get_by_text("This adapter would be accepted")).to_be_visible(timeout=SLOW_MS)
    button.click()
    tray = page.get_by_role("complementary", name="Uploads")
    expect(tray.get_by_text("Active: requests can use it")).to_be_visible(timeout=SLOW_MS)


def test_a_version_that_is_kept_inactive_takes_nothing(
    page: Page, portal: PortalUnderTest, key: str
) -> None:
    upload(page, "Keep inactive")
    assert asked(portal, key) == "bot@1"
    page.goto("/adapters/bot")
    page.get_by_role("button", name="Upload version").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("does not receive requests automatically")).to_be_visible()


def test_the_way_back_needs_no_alias(page: Page, portal: PortalUnderTest, key: str) -> None:
    upload(page, "Activate")
    assert asked(portal, key) == "bot@2"
    page.goto("/adapters/bot/rollout")
    expect(page.get_by_text("sends all requests to version 1")).to_be_visible()
    page.get_by_role("button", name="Roll back").click()
    expect(page.get_by_text("rolled back").first).to_be_visible()
    assert asked(portal, key) == "bot@1"


def test_deleting_what_serves(page: Page, portal: PortalUnderTest, key: str) -> None:
    asked(portal, key)
    page.goto("/adapters/bot")
    link = page.get_by_role("link", name="Try in playground")
    link.click()
    base = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    expect(page.get_by_role("combobox", name="Model of response 1")).to_have_value("bot")
    second = page.get_by_role("combobox", name="Model of response 2")
    expect(second).to_have_value(base)
    page.goto("/adapters/bot")
    page.get_by_role("button", name="More actions for bot").click()
    page.get_by_role("menuitem", name="Delete adapter").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(
        "bot currently serves requests: bot had 1 request in the last 24 hours"
    )
    delete = dialog.get_by_role("button", name="Delete")
    expect(delete).to_be_disabled()
    dialog.get_by_label("Type bot to confirm").fill("bo")
    expect(delete).to_be_disabled()
    dialog.get_by_label("Type bot to confirm").fill("bot")
    delete.click()
    expect(page.get_by_text("No adapters yet")).to_be_visible()
