"""A roll-out in the portal, on a real engine: weights by slider, stages, a flip back, and an
evaluation that is asked and read."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from busy_platform import ADAPTERS, add_adapter
from portal_under_test import PortalUnderTest

NAME = "support"
SOON_MS = 20_000  # a request is in the books a second later, and the page hears of it


@pytest.fixture(scope="module")
def key(portal: PortalUnderTest) -> str:
    """Of a tenant with two versions of one adapter."""
    _, key = portal.new_tenant("Initech")
    for folder in ("acme-support", "globex-support"):
        add_adapter(portal, key, NAME, ADAPTERS / folder)
    return key


def open_rollout(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation").first).to_be_visible()
    page.goto(f"/adapters/{NAME}/rollout")
    expect(page.get_by_role("heading", name=f"Rollout of {NAME}")).to_be_visible()


def targets(portal: PortalUnderTest, key: str) -> dict[int, int]:
    aliases: list[dict[str, Any]] = portal.call(key, "GET", f"/v1/adapters/{NAME}/aliases")["data"]
    return {each["version"]: each["weight"] for each in aliases[0]["targets"]}


def test_weights_stages_and_the_way_back(page: Page, portal: PortalUnderTest, key: str) -> None:
    open_rollout(page, key)
    thumb = page.get_by_role("slider", name="Weight of version 1")
    thumb.focus()
    page.keyboard.press("End")  # all of them, by keyboard alone
    page.get_by_label("Reason (shown in the history)").first.fill("a known good one")
    page.get_by_role("button", name="Apply weights").click()
    changes = page.get_by_role("table", name="Alias changes")
    expect(changes).to_contain_text("a known good one")
    assert targets(portal, key) == {1: 100}

    page.get_by_role("button", name="Start rollout").click()
    state = page.get_by_test_id("rollout-state")
    expect(state).to_have_text("running")
    assert targets(portal, key) == {1: 95, 2: 5}
    expect(page.get_by_role("table", name="Guard rails")).to_contain_text("TTFT")
    expect(page.get_by_role("button", name="Apply weights")).to_have_count(0)
    portal.call(
        key, "POST", "/v1/completions", json={"model": NAME, "prompt": "a", "max_tokens": 2}
    )
    page.get_by_role("button", name="Requests: show as table").click(timeout=SOON_MS)
    numbers = page.get_by_role("group", name="Requests, table")
    expect(numbers.get_by_role("cell", name="1", exact=True)).to_be_visible()

    page.get_by_role("button", name="Roll back", exact=True).click()
    expect(state).to_have_text("cancelled")
    assert targets(portal, key) == {1: 100}
    expect(changes.get_by_role("row").nth(1)).to_contain_text("rolled back")


def test_an_evaluation_is_asked_and_read(page: Page, portal: PortalUnderTest, key: str) -> None:
    open_rollout(page, key)
    page.get_by_role("link", name="Evaluate", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Items, one JSON object per line").fill('{"prompt": "a"}')
    expect(dialog.get_by_text('Line 1 has no "expected"')).to_be_visible()
    expect(dialog.get_by_role("button", name="Evaluate")).to_be_disabled()
    dialog.get_by_label("Items, one JSON object per line").fill(
        '{"messages": [{"role": "user", "content": "My parcel is late"}], "expected": "parcel"}'
    )
    dialog.get_by_role("button", name="Evaluate").click()

    expect(page.get_by_role("heading", name=f"Evaluation of {NAME}")).to_be_visible()
    # The real engine answers three times, beside whatever else the suite asks of the cores.
    expect(page.get_by_text("completed", exact=True)).to_be_visible(timeout=60_000)
    made = portal.call(key, "GET", "/v1/evaluations")["data"][0]
    assert made["versions"] == [2, 1, "base"]
    scores = page.get_by_role("table", name="Scores")
    for result in made["results"]:
        name = "Base model" if result["version"] == "base" else f"Version {result['version']}"
        row = scores.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text(f"{result['score']:.1%}")
    expect(page.get_by_role("region", name="Item 0")).to_contain_text("Base model")
