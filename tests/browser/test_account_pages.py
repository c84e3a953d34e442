"""The pages of an account in a real browser before a real platform: its first person's invitation,
its settings, its credit, ledger and prices, and its budget with alerts. What the pages say is what
the API says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from page_checks import settle, violations
from portal_under_test import PortalUnderTest

pytestmark = pytest.mark.browser

CLS = """(() => {
  window.moved = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) if (!each.hadRecentInput) window.moved += each.value;
  }).observe({type: 'layout-shift', buffered: true});
})()"""
CLS_MAX = 0.1
SLOW_MS = 60_000


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account")).to_be_visible()


def ask(portal: PortalUnderTest, key: str, tokens: int = 8) -> httpx.Response:
    base = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    body = {"model": base, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": tokens}
    headers = {"authorization": f"Bearer {key}"}
    url = f"{portal.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60)


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def spent(portal: PortalUnderTest, key: str) -> Decimal:
    """What the account has cost this month, in its only currency."""
    found = portal.call(key, "GET", "/v1/forecast")["currencies"]
    return Decimal(found[0]["spent"]) if found else Decimal(0)


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_the_operator_invites_a_tenants_first_person(page: Page, portal: PortalUnderTest) -> None:
    sign_in(page, portal.server.admin_key)
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("button", name="Create tenant").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("Brand new")
    dialog.get_by_role("button", name="Create", exact=True).click()
    dialog.get_by_role("button", name="Create key").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Invite its first person").click()
    expect(dialog).to_contain_text("Invite a person to Brand new")
    expect(dialog.get_by_label("Role", exact=True)).to_have_value("owner")
    dialog.get_by_label("Email").fill("olga@example.com")
    dialog.get_by_role("button", name="Create link").click()
    link = dialog.get_by_label("Link", exact=True).input_value()
    page.keyboard.press("Escape")
    expect(dialog.get_by_label("Link", exact=True)).to_have_value(link)
    dialog.get_by_role("button", name="Done").click()

    token = link.partition("#")[2] or link.rpartition("/")[2]
    assert token, link
    (tenant,) = portal.admin("GET", "/admin/v1/tenants?q=Brand new")["data"]
    path = f"/admin/v1/tenants/{tenant['id']}/invitations"
    (made,) = portal.admin("GET", path)["data"]
    assert (made["role"], made["email"], made["state"]) == ("owner", "olga@example.com", "open")
    assert "link" not in made, "it is shown once"

    page.get_by_role("link", name="Open the tenant").click()
    page.get_by_role("tab", name="People").click()
    expect(page.get_by_role("main")).to_contain_text("sign-in provider is set up")
    invitations = page.get_by_role("table", name="Open invitations")
    expect(invitations).to_contain_text("olga@example.com")
    settle(page)
    assert violations(page) == []
    page.get_by_role("button", name="Withdraw invitation for olga@example.com").click()
    expect(invitations).to_have_count(0)
    assert portal.admin("GET", path)["data"] == []
    page.get_by_role("button", name="Invite the first person").click()
    expect(dialog.get_by_label("Role", exact=True)).to_have_value("owner")


def test_settings_are_changed_and_seen_by_the_operator(
    page: Page, portal: PortalUnderTest, chromium: Browser
) -> None:
    tenant, key = portal.new_tenant("Settled tenant")
    sign_in(page, key)
    page.get_by_role("link", name="Settings").click()
    profile = region(page, "Billing profile")
    profile.get_by_label("Name on the invoice").fill("Settled AG")
    profile.get_by_label("Email").fill("bills@example.com")
    profile.get_by_label("Tax id").fill("CHE-1")
    profile.get_by_label("Address").fill("Gasse 1\nZurich")
    profile.get_by_role("button", name="Save the profile").click()
    expect(profile.get_by_text("Changed")).to_be_visible()
    found = portal.call(key, "GET", "/v1/billing_profile")
    assert (found["name"], found["address"]) == ("Settled AG", "Gasse 1\nZurich")
    assert (found["email"], found["tax_id"]) == ("bills@example.com", "CHE-1")

    contents = region(page, "Prompts and answers")
    expect(contents).to_contain_text("Off")
    contents.get_by_role("switch", name="Keep prompts and answers").check()
    days = contents.get_by_label("Days for")
    days.fill("367")
    expect(contents.get_by_role("button", name="Save")).to_be_disabled()
    expect(contents).to_contain_text("Enter a whole number from 1 to 366")
    days.fill("7")
    contents.get_by_role("button", name="Save").click()
    expect(contents).to_contain_text("On, for 7 days")
    drafting = region(page, "Faster repeated answers")
    drafting.get_by_role("switch", name="Draft from earlier answers").click()
    expect(drafting.get_by_text("On", exact=True)).to_be_visible()
    settings = portal.call(key, "GET", "/v1/settings")
    assert (settings["keep_contents_days"], settings["draft_from_answers"]) == (7, True)
    assert ask(portal, key).status_code == 200
    contents.get_by_role("button", name="Delete what is kept").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(contents.get_by_text("Deleted.")).to_be_visible()
    settle(page)
    assert violations(page) == []

    body = {"name": "looks on", "scopes": ["usage"]}
    looker = portal.call(key, "POST", "/v1/api_keys", json=body)["key"]
    with chromium.new_context(base_url=portal.url) as context:
        other = context.new_page()
        other.goto("/")
        sign_in(other, looker)
        other.get_by_role("link", name="Settings").click()
        expect(region(other, "Prompts and answers")).to_contain_text("On, for 7 days")
        expect(region(other, "Billing profile").get_by_label("Email")).to_have_value(
            "bills@example.com"
        )
        expect(other.get_by_role("main")).to_contain_text("not change them. Owners can")
        expect(other.get_by_role("button", name=re.compile("Save|Delete"))).to_have_count(0)

    with chromium.new_context(base_url=portal.url) as context:
        operator = context.new_page()
        operator.goto("/")
        sign_in(operator, portal.server.admin_key)
        operator.goto(f"/operator/tenants/{tenant}?tab=settings")
        expect(region(operator, "Prompts and answers")).to_contain_text("On, for 7 days")
        expect(region(operator, "Account budget")).to_contain_text("no account budget")
        expect(operator.get_by_role("main").get_by_role("switch")).to_have_count(0)
        settle(operator)
        assert violations(operator) == []


def test_credit_and_the_ledger_are_its_own(page: Page, portal: PortalUnderTest) -> None:
    tenant, key = portal.new_tenant("Credited firm")
    stranger, _ = portal.new_tenant("Somebody else")
    for each, amount, currency in ((tenant, "25.5", "EUR"), (stranger, "77", "USD")):
        body = {"amount": amount, "currency": currency, "note": "keep them happy"}
        portal.admin("POST", f"/admin/v1/tenants/{each}/credits", json=body)
    sign_in(page, key)
    page.get_by_role("link", name="Credit and ledger").click()
    expect(page.get_by_test_id("credit-left")).to_have_text("€25.50")
    rows = page.get_by_role("table", name="Credit", exact=True).get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.last).to_contain_text("€25.50")
    ledger = page.get_by_role("table", name="Ledger").get_by_role("row")
    expect(ledger).to_have_count(2)
    expect(ledger.last).to_contain_text("Credit received")
    expect(ledger.last).to_contain_text("-€25.50")
    page.get_by_label("Kind").select_option("Invoice")
    expect(page.get_by_text("No entries match")).to_be_visible()
    page.get_by_label("Kind").select_option("Every kind")
    expect(ledger).to_have_count(2)
    main = page.get_by_role("main").inner_text()
    assert "77" not in main
    assert "happy" not in main
    settle(page)
    assert violations(page) == []


def test_prices_say_which_list_holds_and_which_comes(page: Page, portal: PortalUnderTest) -> None:
    tenant, key = portal.new_tenant("Priced firm")
    stranger, _ = portal.new_tenant("Priced otherwise")
    metered = {"uncached_prefill": "3", "cached_prefill": "1"}
    tiers = [{"price": "9"}, {"from": 1000000, "price": "8"}]
    own = {"tenant": tenant, "per_million": metered | {"output": tiers}, "minimum": "12"}
    portal.admin("POST", "/admin/v1/prices", json=own)
    later = datetime.now(UTC) + timedelta(days=40)
    coming = {"tenant": tenant, "per_million": metered | {"output": "123.45"}, "included": "4"}
    portal.admin("POST", "/admin/v1/prices", json=coming | {"effective_from": later.isoformat()})
    others = {"tenant": stranger, "per_million": metered | {"output": "678.9"}}
    portal.admin("POST", "/admin/v1/prices", json=others)

    sign_in(page, key)
    page.get_by_role("link", name="Prices").click()
    mine = region(page, "Your account")
    expect(mine).to_contain_text("in force")
    expect(mine).to_contain_text("Applies to all usage.")
    expect(mine).to_contain_text("Monthly minimum: $12.00")
    expect(mine.get_by_role("row").filter(has_text="from 1,000,000")).to_contain_text("$8.00")
    announced = page.get_by_role("region", name="Your account, from")
    expect(announced).to_contain_text("scheduled")
    expect(announced).to_contain_text("$123.45")
    expect(announced).to_contain_text("Included each month: $4.00")
    expect(region(page, "Everybody")).to_contain_text("“Your account” is more specific")
    assert "678.9" not in page.get_by_role("main").inner_text()
    settle(page)
    assert violations(page) == []


def test_a_budget_tells_when_its_thresholds_are_reached(
    page: Page, portal: PortalUnderTest
) -> None:
    _, key = portal.new_tenant("Budgeted firm")
    assert ask(portal, key).status_code == 200
    cost = until(lambda: spent(portal, key))
    amount = f"{cost * 3 / 2:f}"
    sign_in(page, key)
    expect(region(page, "Account budget")).to_contain_text("No account budget is set")
    page.get_by_role("link", name="Set a budget").click()
    page.get_by_label("Amount a month").fill("0")
    page.get_by_role("button", name="Save the budget").click()
    expect(page.get_by_text("Enter an amount above 0")).to_be_visible()
    page.get_by_label("Amount a month, USD").fill(amount)
    page.get_by_role("button", name="Save the budget").click()
    standing = page.get_by_test_id("account-budget")
    expect(standing).to_contain_text("50% reached, alert sent")  # two thirds are spent already
    expect(standing).to_contain_text("80% not reached this month")
    found = portal.call(key, "GET", "/v1/budget")
    assert (Decimal(found["amount"]), found["currency"]) == (Decimal(amount), "USD")
    assert [each["threshold"] for each in found["alerts"]] == [50]
    settle(page)
    assert violations(page) == []

    page.get_by_role("navigation").get_by_role("link", name="Limits").click()
    banner = page.get_by_role("status", name="Budget alert")
    expect(banner).to_contain_text("50% of the account budget of $")
    settle(page)
    assert violations(page) == []
    banner.get_by_role("button", name="Hide").click()
    expect(banner).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", name="Limits", exact=True)).to_be_visible()
    expect(banner).to_have_count(0)

    assert ask(portal, key).status_code == 200
    until(lambda: len(portal.call(key, "GET", "/v1/budget")["alerts"]) == 3)
    # By itself: the page hears of it.
    expect(banner).to_contain_text("is used up", timeout=SLOW_MS)
    told = portal.call(key, "GET", "/v1/events?type=budget.alert")["data"]
    assert sorted(each["data"]["threshold"] for each in told) == [50, 80, 100]
    banner.get_by_role("link", name="Open the budget").click()
    expect(page.get_by_test_id("account-budget")).to_contain_text("100% reached, alert sent")

    page.get_by_label("Refuse requests").check()
    page.get_by_role("button", name="Save the budget").click()
    expect(standing).to_contain_text("Requests stop at the budget")
    refused = ask(portal, key)
    error = refused.json()["error"]
    assert (refused.status_code, error["budget"]) == (429, "account_month")
    assert " USD)" in error["message"]
    page.get_by_role("navigation").get_by_role("link", name="Limits").click()
    budgets = region(page, "Budgets")
    expect(budgets).to_contain_text("your account budget")
    expect(budgets).to_contain_text(re.compile(r"of \$[\d.]+"))
    page.get_by_role("navigation").get_by_role("link", name="Budget").click()
    page.get_by_role("button", name="Remove the budget").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("Set a budget")).to_be_visible()
    assert portal.call(key, "GET", "/v1/budget")["amount"] is None
    assert ask(portal, key).status_code == 200


def test_every_budget_names_its_currency(
    page: Page, portal: PortalUnderTest, chromium: Browser
) -> None:
    plan = {"limits": {"budget": "1234", "budget_day": "56"}}
    portal.admin("PUT", "/admin/v1/plans/moneyed", json=plan)
    made = portal.admin("POST", "/admin/v1/tenants", json={"name": "Moneyed", "plan": "moneyed"})
    path = f"/admin/v1/tenants/{made['id']}/api_keys"
    limits = {"name": "capped", "limits": {"budget": "78.5", "budget_day": "9"}}
    key = portal.admin("POST", path, json=limits)["key"]
    sign_in(page, key)
    page.get_by_role("link", name="Keys").click()
    keys = page.get_by_role("table", name="Keys")
    expect(keys).to_contain_text("$78.50 per month")
    expect(keys).to_contain_text("$9.00 per day")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("button", name="Models, expiry and limits").click()
    expect(page.get_by_label("Monthly budget, USD")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("navigation").get_by_role("link", name="Limits").click()
    for amount in ("$78.50", "$9.00", "$1,234.00", "$56.00"):
        expect(region(page, "Budgets")).to_contain_text(f"of {amount}")
    with chromium.new_context(base_url=portal.url) as context:
        operator = context.new_page()
        operator.goto("/")
        sign_in(operator, portal.server.admin_key)
        operator.goto("/operator/plans?plan=moneyed")
        expect(operator.get_by_label("Monthly budget, USD")).to_have_value("1234")
        expect(operator.get_by_role("table", name="Plans")).to_contain_text("$1,234.00")
        operator.goto(f"/operator/tenants/{made['id']}")
        terms = operator.get_by_role("table", name="Plan terms")
        expect(terms).to_contain_text("$1,234.00")
        operator.get_by_role("tab", name="Keys").click()
        expect(operator.get_by_role("table", name="Keys")).to_contain_text("$78.50 per month")


@pytest.mark.parametrize("path", ["/overview", "/budget", "/credit", "/prices", "/settings"])
def test_nothing_is_moved_while_a_page_comes(
    page: Page, portal: PortalUnderTest, busy: Any, path: str
) -> None:
    sign_in(page, busy.key)
    page.add_init_script(CLS)
    page.goto(path)
    settle(page)
    page.wait_for_function("() => performance.now() > 3000")  # the first live events are there
    assert page.evaluate("window.moved") < CLS_MAX
