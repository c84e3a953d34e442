"""The operator's money in a real browser before a real platform: a price list that is seen on a
month before it is published, drafts and final invoices, paid and credited, credit, books that are
compared, plans, and a name that is taken. What the pages say is what the API says."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from last_month import Asked, book_last_month, last_month
from portal_under_test import PortalUnderTest
from tenora_platform.invoices.period import name_of

pytestmark = pytest.mark.browser

SLOW_MS = 120_000
MONTH = f"{datetime.now(UTC):%Y-%m}"
SIGNS = {"$": "USD", "€": "EUR"}


def sign_in(page: Page, portal: PortalUnderTest) -> None:
    page.get_by_label("Key", exact=True).fill(portal.server.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account")).to_be_visible()


def used(portal: PortalUnderTest, name: str) -> tuple[str, Decimal]:
    """A tenant that has used something, and what that cost."""
    tenant, key = portal.new_tenant(name)
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 8}
    portal.call(key, "POST", "/v1/chat/completions", json=body)
    deadline = time.monotonic() + 60
    while True:
        cost = sum(amounts(portal, tenant).values(), Decimal(0))
        if cost:
            return tenant, cost
        assert time.monotonic() < deadline, "what was used has no cost after a minute"
        time.sleep(0.2)


def amounts(portal: PortalUnderTest, tenant: str) -> dict[str, Decimal]:
    costs = portal.admin("GET", "/admin/v1/costs", params={"tenant": tenant, "bucket": "1mo"})
    found: dict[str, Decimal] = {}
    for bucket in costs["data"]:
        for result in bucket["results"]:
            before = found.get(result["currency"], Decimal(0))
            found[result["currency"]] = before + Decimal(result["amount"])
    return found


def shown(text: str) -> dict[str, Decimal]:
    """What stands on a page, `$1,200.50 · €3.00`, by currency."""
    found = {}
    for part in text.split(" · "):
        match = re.fullmatch(r"([+-]?)([$€])([\d,]+\.\d+)", part.strip())
        assert match, f"{part!r} is no amount"
        sign, currency, digits = match.groups()
        found[SIGNS[currency]] = Decimal(f"{sign}{digits.replace(',', '')}")
    return found


def decimals(of: dict[str, str]) -> dict[str, Decimal]:
    return {currency: Decimal(amount) for currency, amount in of.items()}


def row(page: Page, table: str, name: str) -> Locator:
    return (
        page.get_by_role("table", name=table, exact=True).get_by_role("row").filter(has_text=name)
    )


def pick(page: Page, label: str, name: str) -> None:
    page.get_by_label(label, exact=True).first.fill(name)
    page.get_by_role("option", name=re.compile(f"^{name}")).click()


def test_a_price_is_seen_on_a_month_before_it_is_published(
    page: Page, portal: PortalUnderTest
) -> None:
    tenant, cost = used(portal, "Priced tenant")
    sign_in(page, portal)
    page.get_by_role("link", name="Prices").click()
    page.get_by_role("table", name="Price lists").get_by_role(
        "button", name="All tenants"
    ).first.click()
    page.get_by_role("link", name="Create new version").click()
    expect(page.get_by_role("heading", name="Create price list")).to_be_focused()

    page.get_by_label("Applies to", exact=True).select_option("A tenant")
    pick(page, "Tenant", "Priced tenant")
    for meter in ("Prompt tokens", "Output tokens"):
        page.get_by_label(f"{meter}: price", exact=True).fill("7.25")
    publish = page.get_by_role("button", name="Publish")
    expect(publish).to_be_disabled()
    page.get_by_label("Preview month").select_option(MONTH)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_test_id("preview-totals")).to_be_visible(timeout=SLOW_MS)

    asked = {
        "tenant": tenant,
        "month": MONTH,
        "per_million": {
            "uncached_prefill": "7.25",
            "cached_prefill": page.get_by_label("Cached prompt tokens: price").input_value(),
            "output": "7.25",
        },
    }
    preview = portal.admin("POST", "/admin/v1/prices/preview", json=asked)
    for side in ("before", "after"):
        said = page.get_by_test_id(f"preview-{side}").inner_text()
        assert shown(said) == decimals(preview[f"due_{side}"]), side
    (mine,) = (each for each in preview["data"] if each["tenant"] == tenant)
    cells = row(page, "Preview by tenant", "Priced tenant").get_by_role("cell")
    assert shown(cells.nth(1).inner_text()) == decimals(mine["due_before"]) == {"USD": cost}
    assert shown(cells.nth(2).inner_text()) == decimals(mine["due_after"])
    assert shown(cells.nth(3).inner_text())["USD"] > 0
    page.get_by_label("Output tokens: price").fill("8")
    expect(publish).to_be_disabled()  # the preview is of something else now
    page.get_by_label("Output tokens: price").fill("7.25")
    publish.click()

    panel = page.get_by_role("dialog", name="Price list")
    expect(panel.get_by_text("in force")).to_be_visible()
    (made,) = portal.admin("GET", f"/admin/v1/prices?tenant={tenant}")["data"]
    assert (made["status"], Decimal(made["per_million"]["output"])) == ("in_force", Decimal("7.25"))
    expect(panel).to_contain_text(made["id"])
    assert amounts(portal, tenant) == {"USD": cost}, "what was rated keeps its price"


def test_drafts_are_run_and_looked_at(page: Page, portal: PortalUnderTest) -> None:
    tenant, _ = used(portal, "Drafted tenant")
    sign_in(page, portal)
    page.get_by_role("link", name="Billing").click()
    page.get_by_role("tab", name="Invoices").click()
    page.get_by_label("Month to invoice").select_option(MONTH)
    pick(page, "Tenant", "Drafted tenant")
    page.get_by_role("button", name="Create drafts").click()
    report = page.get_by_role("status").filter(has_text="1 draft for")
    expect(report).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Finalise")).to_be_disabled()

    (draft,) = portal.admin("GET", f"/admin/v1/invoices?tenant={tenant}")["data"]
    assert draft["status"] == "draft"
    row(page, "Invoices", "Drafted tenant").get_by_role("link", name="Draft, ").click()
    expect(page.get_by_role("heading", name="Draft invoice")).to_be_visible()
    total = page.get_by_test_id("invoice-total").inner_text()
    assert shown(total) == {draft["currency"]: Decimal(draft["total"])}
    page.get_by_role("link", name="Drafted tenant").click()
    expect(page.get_by_role("heading", name="Drafted tenant")).to_be_visible()


def test_credit_is_granted_and_seen(page: Page, portal: PortalUnderTest) -> None:
    tenant, _ = portal.new_tenant("Credited tenant")
    sign_in(page, portal)
    page.get_by_role("link", name="Tenants").click()
    page.get_by_label("Search tenants").fill("credited")
    page.get_by_role("link", name="Credited tenant").click()
    page.get_by_role("tab", name="Credit and ledger").click()
    page.get_by_role("button", name="Grant credit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Grant", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("above 0")
    dialog.get_by_label("Amount").fill("25.5")
    dialog.get_by_label("Currency").fill("EUR")
    dialog.get_by_label("Note").fill("for the wait")
    dialog.get_by_role("button", name="Grant", exact=True).click()
    expect(dialog).to_have_count(0)
    grants = page.get_by_role("table", name="Granted and purchased credit")
    expect(grants.get_by_role("row").filter(has_text="for the wait")).to_contain_text("€25.50")
    expect(page.get_by_test_id("credit-left")).to_have_text("€25.50")
    (grant,) = portal.admin("GET", f"/admin/v1/tenants/{tenant}/credits")["data"]
    assert (Decimal(grant["amount"]), grant["currency"]) == (Decimal("25.5"), "EUR")

    page.get_by_role("link", name="Billing").click()
    page.get_by_role("tab", name="Credit", exact=True).click()
    expect(row(page, "Credit of all tenants", "Credited tenant")).to_contain_text("€25.50")


def test_a_taken_name_asks_and_a_key_shown_once_stays(page: Page, portal: PortalUnderTest) -> None:
    first, _ = portal.new_tenant("Twice")
    sign_in(page, portal)
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("button", name="Create tenant").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("twice")
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(dialog.get_by_role("link", name=first)).to_be_visible()
    found: Any = portal.admin("GET", "/admin/v1/tenants?q=twice")
    assert found["total"] == 1, "nothing is made before it is asked"
    dialog.get_by_role("button", name="Create anyway").click()
    page.get_by_role("button", name="Create key").click()
    secret = page.get_by_role("dialog").get_by_label("Key", exact=True)
    key = secret.input_value()
    page.keyboard.press("Escape")
    expect(secret).to_have_value(key)
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row(page, "Tenants", "twice")).to_have_count(2)


def test_the_list_says_what_the_api_says(page: Page, portal: PortalUnderTest) -> None:
    tenant, cost = used(portal, "Listed tenant with a name that is so long that it has to be cut")
    page.set_viewport_size({"width": 390, "height": 800})
    sign_in(page, portal)
    page.goto("/operator/tenants?sort=-spend&q=listed")
    cells = row(page, "Tenants", "Listed tenant").get_by_role("cell")
    assert shown(cells.nth(3).inner_text()) == {"USD": cost}
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"/operator/tenants/{tenant}")
    expect(page.get_by_role("heading", name="Listed tenant")).to_be_visible()
    expect(page.get_by_role("region", name="Cost this month")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def used_last_month(portal: PortalUnderTest, name: str) -> tuple[str, str]:
    """The id and a key of a tenant that asked the base model last month."""
    tenant, key = portal.new_tenant(name)
    base = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    key_id = portal.call(key, "GET", "/v1/me")["key"]["id"]
    book_last_month(portal.data, [Asked(tenant, key_id, base)])
    return tenant, key


def test_a_month_is_made_final_paid_and_credited(page: Page, portal: PortalUnderTest) -> None:
    _, key = used_last_month(portal, "Invoiced tenant")
    sign_in(page, portal)
    page.get_by_role("link", name="Billing").click()
    page.get_by_role("tab", name="Invoices").click()
    expect(page.get_by_label("Month to invoice")).to_have_value(name_of(last_month()))
    pick(page, "Tenant", "Invoiced tenant")
    page.get_by_role("button", name="Create drafts").click()
    expect(page.get_by_role("status").filter(has_text="1 draft for")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Finalise").click()
    page.get_by_role("dialog").get_by_role("button", name="Finalise").click()
    expect(page.get_by_role("status").filter(has_text="1 final invoice for")).to_be_visible(
        timeout=SLOW_MS
    )
    (made,) = portal.call(key, "GET", "/v1/invoices")["data"]
    assert (made["status"], made["amount_due"]) == ("final", made["total"])
    row(page, "Invoices", "Invoiced tenant").get_by_role("link", name=made["number"]).click()
    expect(page.get_by_role("heading", name=f"Invoice {made['number']}")).to_be_visible()

    page.get_by_role("button", name="Record payment").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Amount in USD")).to_have_value(made["total"])
    dialog.get_by_label("Amount in USD").fill("0.01")
    dialog.get_by_label("Reference").fill("wire 7")
    dialog.get_by_role("button", name="Record payment").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("main")).to_contain_text("wire 7")

    page.get_by_role("button", name="Issue credit note").click()
    dialog.get_by_role("checkbox").last.check()
    dialog.get_by_label(re.compile("^Amount for line")).fill("0.02")
    dialog.get_by_label("Reason").fill("a slow day")
    dialog.get_by_role("button", name="Issue credit note").click()
    expect(page.get_by_text("This credit note reduces")).to_contain_text("a slow day")
    found = {each["kind"]: each for each in portal.call(key, "GET", "/v1/invoices")["data"]}
    note, paid = found["credit_note"], found["invoice"]
    expect(page.get_by_role("heading", name=f"Invoice {note['number']}")).to_be_visible()
    assert (note["of_invoice"], abs(Decimal(note["total"]))) == (made["id"], Decimal("0.02"))
    left = Decimal(made["total"]) - Decimal("0.03")
    assert Decimal(paid["amount_due"]) == left
    page.get_by_role("link", name="an invoice").click()
    expect(page.get_by_role("heading", name=f"Invoice {made['number']}")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text(f"${left}")


def test_books_are_compared_and_agree(page: Page, portal: PortalUnderTest) -> None:
    tenant, _ = used_last_month(portal, "Compared tenant")
    sign_in(page, portal)
    page.get_by_role("link", name="Reconciliation").click()
    page.get_by_role("button", name="Compare now").click()
    panel = page.get_by_role("dialog", name="Compare now")
    pick(page, "Tenant", "Compared tenant")
    panel.get_by_role("button", name="Compare", exact=True).click()
    panel = page.get_by_role("dialog", name="Reconciliation run")
    expect(panel.get_by_role("status")).to_contain_text("all agree", timeout=SLOW_MS)
    runs = portal.admin("GET", "/admin/v1/reconciliation/runs")["data"]
    (run,) = (each for each in runs if each["tenant_id"] == tenant)
    assert (run["agrees"], run["looked"]["events"]) == (True, 3)
    page.keyboard.press("Escape")
    table = page.get_by_role("table", name="Reconciliation runs", exact=True)
    expect(table.get_by_role("row").nth(1)).to_contain_text("all agree")


def test_a_plan_is_made_and_changed_with_what_it_does(page: Page, portal: PortalUnderTest) -> None:
    sign_in(page, portal)
    page.get_by_role("link", name="Plans").click()
    page.get_by_role("button", name="Create plan").click()
    panel = page.get_by_role("dialog", name="Create plan")
    panel.get_by_label("Name").fill("gold")
    panel.get_by_label("Scheduling weight").fill("0")
    panel.get_by_role("button", name="Create plan").click()
    expect(panel.get_by_label("Scheduling weight")).to_have_attribute("aria-invalid", "true")
    panel.get_by_label("Scheduling weight").fill("4")
    panel.get_by_label("TTFT target (time to first token), ms").fill("300")
    panel.get_by_role("button", name="Create plan").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row(page, "Plans", "gold")).to_contain_text("300")

    portal.admin("POST", "/admin/v1/tenants", json={"name": "Golden", "plan": "gold"})
    row(page, "Plans", "gold").get_by_role("button", name="gold").click()
    panel = page.get_by_role("dialog", name="Plan gold")
    expect(panel.get_by_role("link", name="1 tenant")).to_be_visible(timeout=SLOW_MS)
    panel.get_by_label("Requests per minute").fill("90")
    changes = panel.get_by_role("table", name="Changes").get_by_role("row")
    expect(changes).to_have_count(2)
    expect(changes.nth(1)).to_contain_text("90")
    panel.get_by_role("button", name="Save changes").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(row(page, "Plans", "gold")).to_contain_text("90")
    plans = portal.admin("GET", "/admin/v1/plans")["data"]
    (gold,) = (each for each in plans if each["name"] == "gold")
    told = (gold["limits"]["requests_per_min"], gold["weight"], gold["tenants"])
    assert told == (90, 4, 1), gold
