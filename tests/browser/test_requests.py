"""Requests, usage and invoices in the portal, on a real engine: a request that the API was sent is
found and proved, and an invoice leads down to it. What is shown is what the API says."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from page_checks import pages
from portal_under_test import PortalUnderTest

SOON_MS = 20_000  # a request is in the books a second later, and the page hears of it
PERIOD = f"{datetime.now(UTC):%Y-%m}"


@pytest.fixture(scope="module")
def tenant(portal: PortalUnderTest) -> tuple[str, str]:
    """The id and a key of one whose requests cost something, in two currencies."""
    tenant_id, key = portal.new_tenant("Initrode")
    for currency in ("EUR", "USD"):  # the later one holds from its second on
        body = {
            "tenant": tenant_id,
            "currency": currency,
            "per_million": {"uncached_prefill": "100", "cached_prefill": "10", "output": "300"},
        }
        portal.admin("POST", "/admin/v1/prices", json=body)
        time.sleep(1.1)  # a price holds for what ends from then on
        ask(portal, key)
    ask(portal, key)
    return tenant_id, key


def ask(portal: PortalUnderTest, key: str) -> str:
    """One short completion, until it is in the books; its id."""
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8}
    request: str = portal.call(key, "POST", "/v1/completions", json=body)["id"]
    deadline = time.monotonic() + SOON_MS / 1000
    while not portal.call(key, "GET", f"/v1/requests?q={request}")["data"]:
        assert time.monotonic() < deadline, "the request is not in the books"
        time.sleep(0.1)
    return request


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation").first).to_be_visible()


def money(text: str) -> Decimal:
    return Decimal(re.sub(r"[$€,\s]", "", text))


def test_a_request_appears_and_its_receipt_holds(
    page: Page, portal: PortalUnderTest, tenant: tuple[str, str], tmp_path: Path
) -> None:
    _, key = tenant
    sign_in(page, key)
    page.get_by_role("link", name="Requests").click()
    rows = page.get_by_role("table", name="Requests").get_by_role("row")
    expect(rows).to_have_count(4)
    request = ask(portal, key)
    page.get_by_role("button", name="Show newest").click(timeout=SOON_MS)
    expect(rows).to_have_count(5)

    page.get_by_label("Request ID or x-request-id").fill(request)
    page.keyboard.press("Enter")
    expect(rows).to_have_count(2)
    rows.nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()
    receipt = portal.call(key, "GET", f"/v1/requests/{request}")
    expect(page.get_by_test_id("amount")).to_be_visible()
    assert money(page.get_by_test_id("amount").inner_text()) == Decimal(receipt["amount"])
    see_the_charges(page, receipt)
    see_the_times(page, receipt)

    page.get_by_role("button", name="Verify signature").click()
    expect(page.get_by_role("status").filter(has_text="signature")).to_contain_text(
        re.compile("The signature is valid|This browser cannot verify")
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    saved = tmp_path / "receipt.json"
    download.value.save_as(saved)
    assert f'"id":"{request}"' in saved.read_text()
    assert '"signature":' in saved.read_text()


def see_the_charges(page: Page, receipt: dict[str, Any]) -> None:
    (sequence,) = receipt["sequences"]
    shown = page.get_by_role("table", name="Charges").get_by_role("row")
    for line, row in zip(sequence["meters"], shown.all()[1:], strict=False):
        quantity, price = line["parts"][0]["quantity"], line["parts"][0]["per_million"]
        cells = row.get_by_role("cell").all_inner_texts()
        count, _, per_million = cells[1].partition("×")
        assert money(count) == quantity
        assert money(per_million) == Decimal(price)
        assert money(cells[2]) == Decimal(line["amount"]) == quantity * Decimal(price) / 10**6
        assert cells[3] == sequence["price_version"]


def see_the_times(page: Page, receipt: dict[str, Any]) -> None:
    times = receipt["sequences"][0]["times_ms"]
    assert times["queue"] + times["prefill"] + times["decode"] == pytest.approx(
        times["total"], abs=0.01
    )
    table = page.get_by_role("table", name="Times")
    heads = table.get_by_role("columnheader").all_inner_texts()
    assert [head.strip() for head in heads] == [
        *["Sequence", "Queue", "Adapter load", "Prefill", "Decode", "Total"]
    ]
    total = table.get_by_role("cell").last.inner_text()
    number, unit = total.split()
    shown_ms = float(number) * (1000 if unit == "s" else 1)
    assert shown_ms == pytest.approx(times["total"], rel=0.01, abs=1)


def test_filters_are_the_apis_and_stand_in_the_address(
    page: Page, portal: PortalUnderTest, tenant: tuple[str, str]
) -> None:
    _, key = tenant
    sign_in(page, key)
    for query in ("status=failed", "adapter=", "class=flex", "sort=-cost", "min_ttft_ms=999999"):
        page.goto(f"/requests?{query}")
        data = portal.call(key, "GET", f"/v1/requests?limit=100&{query}")["data"]
        if not data:
            expect(page.get_by_text("No requests match these filters")).to_be_visible()
            continue
        links = page.get_by_role("table", name="Requests").get_by_role("link")
        expect(links).to_have_count(len(data))
        shown = [each.get_attribute("title") for each in links.all()]
        assert shown == [each["id"] for each in data]


def test_usage_is_the_apis_and_a_bar_leads_to_its_requests(
    page: Page, portal: PortalUnderTest, tenant: tuple[str, str]
) -> None:
    _, key = tenant
    sign_in(page, key)
    for currency in portal.call(key, "GET", "/v1/forecast")["currencies"]:
        spent = page.get_by_test_id(f"spent-{currency['currency']}")
        expect(spent).to_be_visible()
        assert money(spent.inner_text()) == Decimal(currency["spent"])
    page.get_by_role("link", name="Usage and cost").click()
    total = page.get_by_test_id("total-cost")
    expect(total).to_contain_text("€")
    costs = portal.call(key, "GET", "/v1/costs?bucket=1mo")["data"][0]["results"]
    amounts = sorted(Decimal(each["amount"]) for each in costs)
    assert len(amounts) == 2, "two currencies"
    assert sorted(map(money, total.inner_text().split())) == amounts
    table = page.get_by_role("table", name="Usage by adapter")
    (usage,) = portal.call(key, "GET", "/v1/usage?bucket=1mo")["data"][0]["results"]
    cells = table.get_by_role("row").nth(1).get_by_role("cell").all_inner_texts()
    assert [int(money(cell)) for cell in cells[1:5]] == [
        usage["requests"],
        usage["uncached_tokens"],
        usage["cached_tokens"],
        usage["output_tokens"],
    ]
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    told = sum(Decimal(line.split(",")[9]) for line in lines[1:])
    assert told == sum(amounts)

    chart = page.get_by_role("img", name="Cost by adapter, EUR, chart")
    chart.focus()
    page.keyboard.press("ArrowLeft")  # the last day, and from there to today
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    for _ in range(datetime.now(UTC).day - 1):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    assert "start=" in page.url
    rows = page.get_by_role("table", name="Requests").get_by_role("row")
    expect(rows).to_have_count(usage["requests"] + 1)


def test_from_an_invoice_to_a_request(
    page: Page, portal: PortalUnderTest, tenant: tuple[str, str]
) -> None:
    """The operator runs a draft of this month; who may see drafts follows its line down."""
    tenant_id, _ = tenant
    body = {"tenant": tenant_id, "period": PERIOD, "draft": True}
    made = portal.admin("POST", "/admin/v1/invoices/run", json=body)["invoices"]
    invoice = portal.admin("GET", f"/admin/v1/invoices/{made[0]['id']}")
    sign_in(page, portal.server.admin_key)
    address = operators_invoice(portal, invoice["id"])
    if address is None:
        pytest.skip("the operator's page of an invoice is not there yet")
    page.goto(address)
    total = page.get_by_test_id("invoice-total")
    expect(total).to_be_visible()
    assert money(total.inner_text()) == Decimal(invoice["total"])
    (line,) = [each for each in invoice["lines"] if each["meter"] == "output"]
    page.get_by_role("button", name=re.compile(f"Show usage behind line {line['no']}:")).click()
    panel = page.get_by_role("dialog")
    for step in ("day", "adapter", "API key"):
        table = panel.get_by_role("table", name=f"Line by {step}")
        expect(table).to_be_visible()
        quantity = table.get_by_role("row").nth(1).get_by_role("cell").nth(1).inner_text()
        assert int(money(quantity)) == line["quantity"], step
        table.get_by_role("button").first.click()
    table = panel.get_by_role("table", name="Line by request")
    expect(table).to_be_visible()
    rows = table.get_by_role("row").all()[1:]
    amounts = [money(row.get_by_role("cell").last.inner_text()) for row in rows]
    assert sum(amounts) == Decimal(line["exact_amount"])
    table.get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()
    output = page.get_by_role("table", name="Charges").get_by_role("row", name="Output tokens")
    assert money(output.get_by_role("cell").nth(2).inner_text()) in amounts


def operators_invoice(portal: PortalUnderTest, invoice: str) -> str | None:
    """Where the operator sees it, if there is such a page."""
    paths = [each.path for each in pages() if each.side == "admin"]
    found = next((path for path in paths if re.search(r"invoices/:\w+$", path)), None)
    return None if found is None else re.sub(r":\w+$", invoice, found)
