"""Pages that stay open: what is changed elsewhere shows by itself; the engine and the API are
killed under the open Now page, which says so, greys what is old, and is right again without a
reload."""

from __future__ import annotations

import os
import re
import signal
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from portal_under_test import PortalUnderTest

pytestmark = pytest.mark.browser

SLOW_MS = 120_000
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def portal(own_portal: PortalUnderTest) -> PortalUnderTest:
    """Its processes are killed."""
    return own_portal


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def pid_of(portal: PortalUnderTest, role: str) -> int:
    processes = portal.admin("GET", "/admin/v1/processes")["data"]
    return int(next(each["pid"] for each in processes if each["role"] == role))


def tile(page: Page, label: str) -> Locator:
    return page.get_by_role("region", name=label, exact=True)


def ask(portal: PortalUnderTest, key: str) -> None:
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": HELLO, "max_tokens": 4}
    portal.call(key, "POST", "/v1/chat/completions", json=body)


def test_what_somebody_else_changes_shows_without_a_reload(
    page: Page, portal: PortalUnderTest
) -> None:
    _, key = portal.new_tenant("Watched")
    sign_in(page, key)
    page.get_by_role("link", name="Keys").click()
    expect(page.get_by_test_id("live")).to_have_text("live")
    expect(page.get_by_role("row").filter(has_text="browser")).to_be_visible()
    portal.call(key, "POST", "/v1/api_keys", json={"name": "from elsewhere"})
    expect(page.get_by_role("row").filter(has_text="from elsewhere")).to_be_visible(timeout=10_000)


def shows_what_was_known_last(page: Page) -> None:
    """Greyed, with its age."""
    service = page.get_by_role("region", name="Service", exact=True)
    expect(service.get_by_text(re.compile(r"^\d+ (s|min) old$"))).to_be_visible(timeout=20_000)
    expect(tile(page, "Free pages")).to_contain_text(re.compile(r"\d of [\d,]+"))
    grey = "(body) => getComputedStyle(body).filter"
    assert service.locator("> div").last.evaluate(grey) == "grayscale(1)"
    expect(page.get_by_test_id("live")).to_have_text("live")  # it is the engine that is away


def test_a_killed_engine_shows_and_comes_back_under_the_open_page(
    page: Page, portal: PortalUnderTest
) -> None:
    _, key = portal.new_tenant("Served")
    ask(portal, key)
    sign_in(page, portal.server.admin_key)
    page.get_by_role("link", name="Now", exact=True).click()
    free = tile(page, "Free pages")
    expect(free).to_contain_text(re.compile(r"\d of [\d,]+"), timeout=20_000)
    expect(page.get_by_text("All systems normal.")).to_be_visible(timeout=20_000)
    expect(page.get_by_role("row").filter(has_text="engine")).to_contain_text("healthy")
    supervisor = pid_of(portal, "supervisor")
    os.kill(supervisor, signal.SIGSTOP)  # a new one would come before the last one's word is old
    try:
        os.kill(pid_of(portal, "engine"), signal.SIGKILL)
        incidents = page.get_by_role("list", name="Incidents")
        expect(incidents).to_contain_text("Critical: ", timeout=20_000)
        shows_what_was_known_last(page)
    finally:
        os.kill(supervisor, signal.SIGCONT)

    service = page.get_by_role("region", name="Service", exact=True)
    expect(incidents).not_to_contain_text("Critical: ", timeout=SLOW_MS)
    expect(service.get_by_text(re.compile(r"old$"))).to_have_count(0)
    expect(incidents).to_contain_text("engine was restarted", timeout=40_000)
    row = page.get_by_role("row").filter(has_text="engine")
    expect(row.get_by_role("cell").last).to_have_text("1")
    ask(portal, key)


def test_a_killed_api_shows_its_age_and_comes_back(page: Page, portal: PortalUnderTest) -> None:
    sign_in(page, portal.server.admin_key)
    live = page.get_by_test_id("live")
    expect(live).to_have_text("live")
    expect(tile(page, "Free pages")).to_contain_text(re.compile(r"\d of [\d,]+"), timeout=20_000)
    stopped = pid_of(portal, "api")
    os.kill(stopped, signal.SIGSTOP)  # it hears nothing and closes nothing, as a lost network
    try:
        expect(live).to_contain_text("disconnected", timeout=20_000)
        service = page.get_by_role("region", name="Service", exact=True)
        expect(service.get_by_text(re.compile(r"^\d+ s old$"))).to_be_visible(timeout=20_000)
        shown = service.get_by_text(re.compile(r"^\d+ s old$")).inner_text()
        assert int(shown.split()[0]) >= 15
    finally:
        os.kill(stopped, signal.SIGKILL)
    expect(live).to_have_text("live", timeout=60_000)
    expect(service.get_by_text(re.compile(r"old$"))).to_have_count(0)


def test_the_lanes_say_what_the_api_says_and_lead_to_the_requests(
    page: Page, portal: PortalUnderTest
) -> None:
    tenant_id, key = portal.new_tenant("Laned")
    for _ in range(3):
        ask(portal, key)
    query = {"metric": "ttft_attainment", "group_by": "tenant,class", "tenant": tenant_id}
    deadline = time.monotonic() + 30
    promised = met = 0
    while promised < 3:
        assert time.monotonic() < deadline, "the history does not come"
        series = portal.admin("GET", "/admin/v1/timeseries", params=query)["series"]
        promised = sum(sum(each["promised"]) for each in series)
        met = sum(sum(each["met"]) for each in series)
        time.sleep(0.5)
    sign_in(page, portal.server.admin_key)
    page.get_by_role("link", name="Service", exact=True).click()
    page.get_by_label("Tenant or class").fill("Laned")
    lanes = page.get_by_role("region", name="By tenant")
    expect(lanes).to_contain_text("Laned")
    expect(lanes).to_contain_text("target 2.00 s")
    expect(lanes.get_by_test_id("said")).to_contain_text(f"{met}/{promised}")

    lane = lanes.get_by_role("slider", name="Laned, default")
    lane.focus()
    page.keyboard.press("End")
    seen = 0
    for _ in range(5):
        found = re.search(r"(\d+)/(\d+)", lanes.get_by_test_id("said").inner_text())
        seen += int(found.group(2)) if found else 0
        if seen == promised:
            break
        page.keyboard.press("ArrowLeft")
    assert seen == promised

    page.get_by_text("Table", exact=True).click()
    table = page.get_by_role("table", name="Attainment by tenant")
    rows = table.get_by_role("row").filter(has_text="Laned")
    expect(rows.first).to_be_visible()
    assert sum(int(cells.split("\t")[5]) for cells in rows.all_inner_texts()) == promised
    page.get_by_text("Lanes", exact=True).click()
    lane.focus()
    page.keyboard.press("End")
    with page.expect_event("framenavigated", lambda frame: "/operator/requests?" in frame.url):
        page.keyboard.press("Enter")
    address = parse_qs(urlsplit(page.url).query)
    assert address["tenant"] == [tenant_id]
    assert int(address["end"][0]) - int(address["start"][0]) == 120, (
        "and a minute more, in which they ended"
    )
