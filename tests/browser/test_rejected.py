"""What the portal says of errors is what was sent: counts on the overview, each rejected call in
the list, the operator's list and the ways that lead there."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from page_checks import go_to, settle
from portal_under_test import PortalUnderTest, running_portal

pytestmark = pytest.mark.browser

SLOW_MS = 120_000
CALLS = 30
_SOON_S = 120.0


@pytest.fixture(scope="module")
def portal(
    chromium: Browser, base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PortalUnderTest]:
    """One with two API processes, whose counts are one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENORA_WORKERS", "2")
        with running_portal(tmp_path_factory.mktemp("rejected"), base_model_dir) as made:
            yield made


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()


def calls(model: str) -> list[tuple[dict[str, Any], int]]:
    """Bodies of a chat, and the status that each has."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return [
        ({**chat, "model": "none-such"}, 404),
        ({**chat, "model": model, "temperature": 9}, 400),
        ({**chat, "model": model, "max_tokens": -1}, 400),
        ({"model": model}, 400),
        ({**chat, "model": model, "tools": [{"type": "nothing"}]}, 400),
        ({**chat, "model": model}, 200),
    ]


def send(portal: PortalUnderTest, key: str) -> dict[str, tuple[int, Any]]:
    """Thirty random rejected calls and some that are not; by x-request-id status and error."""
    draw = random.Random(12)
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    sent: dict[str, tuple[int, Any]] = {}
    rejected = 0
    while rejected < CALLS:
        body, status = draw.choice(calls(model))
        name = f"walk-{len(sent)}"
        headers = {"authorization": f"Bearer {key}", "x-request-id": name}
        answer = httpx.post(
            f"{portal.url}/v1/chat/completions", json=body, headers=headers, timeout=60
        )
        assert answer.status_code == status, answer.text
        rejected += status >= 400
        sent[name] = status, answer.json().get("error")
    return sent


def counted(portal: PortalUnderTest, key: str, sent: int) -> None:
    """Waits until what was sent is in the history: a worker takes it over every few seconds."""
    deadline = time.monotonic() + _SOON_S
    while True:
        query = {"metric": "answers"}
        sums = portal.call(key, "GET", "/v1/timeseries", params=query)["sums"]
        if sums and sums[0]["value"] == sent:
            return
        assert time.monotonic() < deadline, sums
        time.sleep(0.5)


def test_the_walk_shows_what_was_sent(page: Page, portal: PortalUnderTest) -> None:
    tenant, key = portal.new_tenant("Walked")
    _, quiet = portal.new_tenant("Never called")
    sent = send(portal, key)
    counted(portal, key, len(sent))
    model = portal.call(quiet, "GET", "/v1/models")["data"][0]["id"]
    body, _ = calls(model)[-1]
    portal.call(quiet, "POST", "/v1/chat/completions", json=body)
    counted(portal, quiet, 1)
    statuses = Counter(str(status) for status, _ in sent.values() if status >= 400)

    sign_in(page, key)
    panel = page.get_by_role("region", name="Errors by status")
    percent = f"{100 * CALLS / len(sent):.1f}%"
    expect(panel).to_contain_text(
        f"{CALLS} of {len(sent)} inference calls ({percent})", timeout=SLOW_MS
    )
    panel.get_by_role("link", name="Rejected calls").click()
    settle(page)
    expect(page.get_by_text(f"{CALLS} calls", exact=True)).to_be_visible()
    for kind, count in statuses.items():
        go_to(page, f"/rejected?status={kind}")
        expect(page.get_by_text(f"{count} calls", exact=True)).to_be_visible()
    go_to(page, "/rejected")
    table = page.get_by_role("table", name="Rejected calls")
    search = page.get_by_label("Search rejected calls")
    refused = {name: told for name, told in sent.items() if told[0] >= 400}
    listed = portal.call(key, "GET", "/v1/rejected_calls", params={"limit": 100})["data"]
    assert {each["request_id"] for each in listed} == set(refused)
    for own in listed:
        status, error = refused[own["request_id"]]
        assert (own["status"], own["message"]) == (status, error["message"])
        assert (own["param"], own["api_key_name"]) == (error["param"], "browser")
    for name in list(refused)[::6]:
        search.fill(f"{name}")
        expect(page).to_have_url(re.compile(f"q={name}$"))
        line = table.get_by_role("row").filter(has_text=str(refused[name][0]))
        expect(line.first).to_be_visible()
    line = table.get_by_role("row").nth(1)
    line.get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("POST /v1/chat/completions")
    expect(dialog).to_contain_text("browser")
    page.keyboard.press("Escape")

    page.get_by_role("button", name="Account").click()
    page.get_by_role("menuitem", name="Sign out").click()
    page.goto("/overview")
    sign_in(page, quiet)
    panel = page.get_by_role("region", name="Errors by status")
    for path in ("/adapters", "/requests", "/limits", "/nowhere", "/overview"):
        go_to(page, path)
        settle(page)
    expect(panel).to_contain_text("0 of 1 inference calls (0.0%)", timeout=SLOW_MS)

    rows = portal.admin("GET", "/admin/v1/rejected_calls", params={"tenant": tenant, "limit": 100})
    assert sum(each["calls"] for each in rows["data"]) == CALLS


def test_the_operator_sees_whose_calls_were_rejected(page: Page, portal: PortalUnderTest) -> None:
    tenant, key = portal.new_tenant("Refused often")
    for _ in range(3):
        send_one(portal, key)
    sign_in(page, portal.server.admin_key)
    tile = page.get_by_role("region", name="Error responses")
    tile.get_by_role("link", name="Error responses").click(timeout=SLOW_MS)
    expect(page.get_by_role("heading", name="Rejected calls", level=1)).to_be_visible()
    go_to(page, f"/operator/rejected?tenant={tenant}")
    expect(page.get_by_text("3 calls", exact=True)).to_be_visible(timeout=SLOW_MS)
    row = page.get_by_role("table", name="Rejected calls").get_by_role("row").nth(1)
    expect(row.get_by_role("link", name="Refused often")).to_be_visible()
    expect(row).to_contain_text("404")


def send_one(portal: PortalUnderTest, key: str) -> None:
    body = {"model": "none", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {key}"}
    url = f"{portal.url}/v1/chat/completions"
    assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 404
