"""The playground on a real engine: versions side by side with what they cost, a link that brings
it back, code, and an answer that is stopped."""

from __future__ import annotations

import base64
import json
from decimal import Decimal

from playwright.sync_api import Page, expect

from busy_platform import Busy
from portal_under_test import PortalUnderTest


def open_playground(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_role("heading", name="Playground")).to_be_visible()


def test_what_is_shown_is_what_the_receipts_say(
    page: Page, portal: PortalUnderTest, busy: Busy
) -> None:
    open_playground(page, busy.key)
    page.get_by_label("Prompt").fill("Where is my parcel?")
    page.get_by_label("Max tokens").fill("12")
    page.get_by_role("combobox", name="Model of response 2").click()
    page.get_by_role("option", name="support@1").click()
    page.get_by_role("button", name="Send to 2 models").click()
    asked = (("json", "$"), ("support@1", "€"))
    for number, (model, sign) in enumerate(asked, 1):
        pane = page.get_by_role("region", name=f"Response {number}", exact=True)
        cost = pane.get_by_test_id("cost")
        expect(cost).to_contain_text(f"{sign}0.0")
        link = pane.get_by_role("link", name="Receipt").get_attribute("href")
        assert link is not None
        receipt = portal.call(busy.key, "GET", f"/v1{link}")
        assert Decimal(cost.inner_text().removeprefix(sign)) == Decimal(receipt["amount"])
        assert receipt["asked"]["model"] == model
        expect(pane.get_by_text(f"{receipt['tokens']['output']} tokens")).to_be_visible()


def test_models_are_searched_by_the_server(page: Page, busy: Busy) -> None:
    open_playground(page, busy.key)
    field = page.get_by_role("combobox", name="Model of response 2")
    field.click()
    field.fill("SUPP")
    expect(page.get_by_role("option", name="support@1")).to_be_visible()
    expect(page.get_by_role("option", name="json")).to_have_count(0)
    field.fill("support@1")
    expect(page.get_by_role("option")).to_have_count(1)
    field.press("ArrowDown")
    field.press("Enter")
    expect(field).to_have_value("support@1")
    field.fill("nothing like it")
    expect(page.get_by_text("No models match")).to_be_visible()


def test_what_is_gone_falls_away_and_what_is_linked_comes_first(page: Page, busy: Busy) -> None:
    open_playground(page, busy.key)
    setup = {"prompt": "Kept?", "system": "", "models": ["gone@4", "support@1"]}
    text = base64.urlsafe_b64encode(json.dumps(setup).encode()).decode().rstrip("=")
    page.evaluate("(kept) => sessionStorage.setItem('tenora.playground', kept)", text)
    first = page.get_by_role("combobox", name="Model of response 1")
    page.reload()
    expect(first).to_have_value("support@1")
    expect(page.get_by_role("combobox", name="Model of response 2")).to_have_count(0)
    page.goto("/playground?left=support")
    expect(first).to_have_value("support")
    expect(page.get_by_role("combobox", name="Model of response 2")).to_have_value("json")
    expect(page.get_by_label("Prompt")).to_have_value("Kept?")


def test_a_link_brings_it_back_and_holds_no_key(page: Page, busy: Busy) -> None:
    open_playground(page, busy.key)
    page.get_by_label("Prompt").fill("Once, twice — 遅い")
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()
    link = page.url
    assert busy.key not in link
    page.get_by_role("button", name="View code").click()
    page.get_by_text("Python", exact=True).click()
    expect(page.get_by_role("group", name="Request in Python")).to_contain_text("seed=7")

    page.evaluate("sessionStorage.removeItem('tenora.playground')")  # only the link knows
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_label("Prompt")).to_have_value("Once, twice — 遅い")
    expect(page.get_by_label("System message")).to_have_value("Be brief.")
    expect(page.get_by_label("Seed")).to_have_value("7")


def test_escape_stops_and_what_was_generated_is_shown(page: Page, busy: Busy) -> None:
    open_playground(page, busy.key)
    page.get_by_label("Prompt").fill("Tell me all about parcels.")
    page.get_by_label("Max tokens").fill("4000")
    page.get_by_label("Temperature").fill("1.5")
    page.get_by_role("button", name="Remove response 2").click()
    page.get_by_role("button", name="Send", exact=True).click()
    pane = page.get_by_role("region", name="Response 1", exact=True)
    expect(pane.get_by_test_id("answer")).to_be_visible()
    page.keyboard.press("Escape")
    expect(pane.get_by_text("Stopped.")).to_be_visible()
    expect(pane.get_by_test_id("cost")).to_contain_text("$0.0")
    page.get_by_role("link", name="Adapters").click()
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_label("Prompt")).to_have_value("Tell me all about parcels.")
