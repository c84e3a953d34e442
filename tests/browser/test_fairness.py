"""Fairness on a real engine with few places: one tenant floods it, another with more weight comes
later. Who waited because of whom is what the API says, and leads to the requests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from page_checks import settle, sideways, violations
from portal_under_test import PortalUnderTest, running_portal

SOON_S = 60.0


@pytest.fixture(scope="module")
def portal(
    chromium: Browser, base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PortalUnderTest]:
    folder = tmp_path_factory.mktemp("fairness")
    with running_portal(folder, base_model_dir, "--max-running", "2") as made:
        yield made


def ask(portal: PortalUnderTest, key: str, tokens: int) -> Any:
    messages = [{"role": "user", "content": "Count as far as you can."}]
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    return portal.call(key, "POST", "/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def tenants(portal: PortalUnderTest) -> dict[str, str]:
    """Their ids by name. beta has asked for much, and then acme for a little."""
    ids, keys = {}, {}
    for name, weight in (("acme", 3.0), ("beta", 1.0)):
        portal.admin("PUT", f"/admin/v1/plans/of-{name}", json={"weight": weight, "limits": {}})
        made = portal.admin("POST", "/admin/v1/tenants", json={"name": name, "plan": f"of-{name}"})
        path = f"/admin/v1/tenants/{made['id']}/api_keys"
        ids[name], keys[name] = made["id"], portal.admin("POST", path, json={"name": "x"})["key"]
    with ThreadPoolExecutor(16) as pool:
        flood = [pool.submit(ask, portal, keys["beta"], 40) for _ in range(8)]
        time.sleep(1.0)
        later = [pool.submit(ask, portal, keys["acme"], 20) for _ in range(3)]
        for each in (*flood, *later):
            each.result()
    wanted = {("beta", "own", None), ("beta", "queue", "acme"), ("acme", "queue", "beta")}
    deadline = time.monotonic() + SOON_S
    while not wanted <= set(waited(portal)):
        assert time.monotonic() < deadline, waited(portal)
        time.sleep(0.5)
    time.sleep(6.0)  # the last look at the engine, after which nothing is added
    return ids


def waited(portal: PortalUnderTest) -> dict[tuple[str, str, str | None], Any]:
    rows = portal.admin("GET", "/admin/v1/waits")["data"]
    return {(row["tenant_name"], row["cause"], row["other_name"]): row for row in rows}


def open_fairness(page: Page, portal: PortalUnderTest) -> None:
    page.get_by_label("Key", exact=True).fill(portal.server.admin_key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Fairness").click()
    expect(page.get_by_role("heading", name="Fairness", level=1)).to_be_visible()


def test_who_waited_because_of_whom(
    page: Page, portal: PortalUnderTest, tenants: dict[str, str]
) -> None:
    open_fairness(page, portal)
    matrix = page.get_by_role("group", name="Wait time by tenant and cause, in seconds")
    found = waited(portal)
    for (name, cause, other), what in {
        ("acme", "queue", "beta"): "acme behind beta's queue",
        ("beta", "queue", "acme"): "beta behind acme's queue",
        ("beta", "own", None): "beta behind its own requests",
    }.items():
        row = found[name, cause, other]
        cell = matrix.get_by_role("link", name=what)
        exact = f"{row['seconds']:.3f} s, {row['sequences']} sequences"
        expect(cell).to_have_attribute("title", exact)
    assert found["beta", "own", None]["seconds"] > found["acme", "queue", "beta"]["seconds"]
    sentence = page.get_by_test_id("sentence").inner_text()
    assert "behind" in sentence
    assert "proven bound" in sentence
    settle(page)
    assert not violations(page)


def test_shares_and_the_gap_are_the_apis(
    page: Page, portal: PortalUnderTest, tenants: dict[str, str]
) -> None:
    open_fairness(page, portal)
    (shares,) = portal.admin("GET", "/admin/v1/fairness")["classes"]
    table = page.get_by_role("group", name="Share of service by class and tenant")
    for share in shares["tenants"]:
        cells = table.get_by_role("row").filter(has_text=share["tenant_name"]).inner_text()
        assert f"{min(share['service_share'] * 100, 99.9):.1f}%" in cells
        assert f"{share['weight_share'] * 100:.1f}%" in cells
    assert {s["tenant_name"]: s["weight"] for s in shares["tenants"]} == {"acme": 3, "beta": 1}
    assert all(0 <= gap["gap_tokens"] < gap["bound_tokens"] for gap in shares["gaps"])
    page.get_by_role("button", name="Service gap in class default: show as table").click()
    numbers = page.get_by_role("figure", name="Service gap in class default")
    for gap in shares["gaps"]:
        expect(numbers.get_by_text(f"{gap['bound_tokens'] / 1000:.1f}K").first).to_be_visible()


def test_a_cell_leads_to_the_requests(
    page: Page, portal: PortalUnderTest, tenants: dict[str, str]
) -> None:
    open_fairness(page, portal)
    matrix = page.get_by_role("group", name="Wait time by tenant and cause, in seconds")
    matrix.get_by_role("link", name="acme behind beta's queue").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
    assert f"tenant={tenants['acme']}" in page.url
    assert "sort=-queue" in page.url
    slowest = portal.admin("GET", f"/admin/v1/requests?tenant={tenants['acme']}")["data"][0]["id"]
    waits = portal.admin("GET", f"/admin/v1/requests/{slowest}/waits")["sequences"][0]
    if waits["parts"] is not None:
        assert sum(part["ms"] for part in waits["parts"]) == pytest.approx(
            waits["queue_ms"], abs=1.0
        )


def test_it_looks_right_small_and_in_the_dark(
    page: Page, portal: PortalUnderTest, tenants: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(os.environ.get("TENORA_SCREENSHOTS") or tmp_path)
    open_fairness(page, portal)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        for width in (390, 1320):
            page.set_viewport_size({"width": width, "height": 900})
            settle(page)
            assert sideways(page) <= 0
            page.screenshot(path=folder / f"fairness-{theme}-{width}.png", full_page=True)
        assert not violations(page)
