"""The portal in a real browser before a real platform: from a key to an upload, an answer, a cost;
and from the operator's key to the tenants and the page pool. Every page under its content security
policy, what it is there to stop included."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from busy_platform import add_adapter
from page_checks import settle
from portal_under_test import REPOSITORY, PortalUnderTest
from tenora_platform.portal import PAGES

pytestmark = pytest.mark.browser

EXAMPLES = REPOSITORY / "examples" / "adapters"
SLOW_MS = 120_000  # a first answer on a busy machine


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()


def sign_out(page: Page) -> None:
    page.get_by_role("button", name="Account").click()
    page.get_by_role("menuitem", name="Sign out").click()


def upload(page: Page, name: str, folder: Path) -> Locator:
    """Upload a PEFT folder through the dialog; the tray, which goes on with it."""
    page.get_by_role("button", name="Upload", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Adapter folder").set_input_files(folder)
    expect(dialog.get_by_text("This adapter would be accepted")).to_be_visible(timeout=SLOW_MS)
    dialog.get_by_role("button", name="Upload", exact=True).click()
    return page.get_by_role("complementary", name="Uploads")


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has_text=name)


def test_from_upload_to_answer_to_cost(page: Page, portal: PortalUnderTest) -> None:
    _, key = portal.new_tenant("Acme")
    sign_in(page, key)
    page.get_by_role("link", name="Adapters").click()
    expect(page.get_by_text("No adapters yet")).to_be_visible()

    for name, folder in {"support": "acme-support", "json": "acme-json"}.items():
        tray = upload(page, name, EXAMPLES / folder)
        expect(tray.get_by_text("Active: requests can use it")).to_be_visible(timeout=SLOW_MS)
        tray.get_by_role("button", name=f"Dismiss {name}@1").click()
        expect(row(page, name)).to_contain_text("serving")
    ask_both(page, "How do I contact support?")
    see_the_cost(page, portal, key)


def ask_both(page: Page, question: str) -> None:
    page.get_by_role("link", name="Playground").click()
    page.get_by_label("Prompt").fill(question)
    page.get_by_label("Max tokens").fill("24")
    page.keyboard.press("Control+Enter")
    texts = []
    for side, adapter in {"Response 1": "json@1", "Response 2": "support@1"}.items():
        pane = page.get_by_role("region", name=side, exact=True)
        expect(pane.get_by_test_id("residency")).to_be_visible(timeout=SLOW_MS)
        expect(pane.get_by_text(re.compile(r"^\d+ tokens$"))).to_be_visible(timeout=SLOW_MS)
        expect(pane.get_by_test_id("adapter")).to_have_text(adapter)
        texts.append(pane.get_by_test_id("answer").inner_text())
    assert all(texts), texts
    assert texts[0] != texts[1], "two different adapters gave the same answer"
    expect(page.get_by_role("button", name="Send to 2 models")).to_be_enabled()


def total(portal: PortalUnderTest, key: str) -> Decimal:
    costs = portal.call(key, "GET", "/v1/costs", params={"bucket": "1mo"})
    results: list[dict[str, Any]] = [
        result for bucket in costs["data"] for result in bucket["results"]
    ]
    return sum((Decimal(result["amount"]) for result in results), Decimal(0))


def see_the_cost(page: Page, portal: PortalUnderTest, key: str) -> None:
    page.get_by_role("link", name="Usage and cost").click()
    table = page.get_by_role("table", name="Usage by adapter")
    for adapter in ("support", "json"):
        expect(table.get_by_role("row").filter(has_text=adapter)).to_contain_text(
            "$0.0", timeout=SLOW_MS
        )
    shown = page.get_by_test_id("total-cost").inner_text()
    assert Decimal(shown.removeprefix("$")) == total(portal, key) > 0
    expect(page.get_by_text("2 requests")).to_be_visible()


def test_operator_sees_tenants_and_the_page_pool(page: Page, portal: PortalUnderTest) -> None:
    sign_in(page, portal.server.admin_key)
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("button", name="Create tenant").click()
    page.get_by_role("dialog").get_by_label("Name").fill("Globex")
    page.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("button", name="Create key").click()
    key = page.get_by_role("dialog").get_by_label("Key", exact=True).input_value()
    page.get_by_role("button", name="Done").click()
    expect(row(page, "Globex")).to_contain_text("active")
    models = portal.call(key, "GET", "/v1/models")["data"]
    assert [model["parent"] for model in models] == [None]

    page.get_by_role("link", name="Engine").click()
    expect(page.get_by_role("heading", name="Engine")).to_be_visible()
    page.get_by_role("link", name="Memory").click()
    expect(page.get_by_role("application", name=re.compile("^Page arena: "))).to_be_visible()
    pool = portal.admin("GET", "/admin/v1/engine")["replicas"][0]["pool"]
    kinds = ("live", "cached", "adapter", "free")
    shown = [page.get_by_test_id(f"pages-{kind}").inner_text() for kind in kinds]
    assert sum(int(count.replace(",", "")) for count in shown) == pool["total_pages"]


def act_on_key(page: Page, name: str, action: str) -> Locator:
    page.get_by_role("button", name=f"Actions for {name}").click()
    page.get_by_role("menuitem", name=action).click()
    return page.get_by_role("dialog").last


def test_a_tenant_manages_its_keys(page: Page, portal: PortalUnderTest) -> None:
    tenant_id, key = portal.new_tenant("Hooli")
    sign_in(page, key)
    page.get_by_role("link", name="Keys").click()
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key name").fill("billing robot")
    for scope in ("inference", "adapters", "keys"):
        dialog.get_by_label(scope, exact=True).uncheck()
    dialog.get_by_role("button", name="Models, expiry and limits").click()
    dialog.get_by_label("Models").fill("support")
    page.keyboard.press("Enter")
    dialog.get_by_label("Requests per minute").fill("30")
    dialog.get_by_role("button", name="Create key").click()
    robot = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_role("button", name="Done").click()
    expect(row(page, "billing robot")).to_contain_text("30 requests/min")
    me = portal.call(robot, "GET", "/v1/me")
    assert (me["scopes"], me["key"]["models"]) == (["usage"], ["support"])

    dialog = act_on_key(page, "billing robot", "Edit")
    dialog.get_by_label("Requests per minute").fill("20")
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "billing robot")).to_contain_text("20 requests/min")

    dialog = act_on_key(page, "billing robot", "Rotate")
    dialog.get_by_text("In 1 hour").click()
    dialog.get_by_role("button", name="Rotate", exact=True).click()
    second = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_role("button", name="Done").click()
    expect(row(page, "billing robot")).to_contain_text("rotating")
    for secret in (robot, second):
        assert portal.call(secret, "GET", "/v1/me")["key"]["id"] == me["key"]["id"]

    sign_out(page)
    sign_in(page, second)  # a key for usage alone comes in, and sees what it may
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()  # not where the other was
    links = page.get_by_role("navigation").get_by_role("link")
    named = ["Overview", "Requests", "Rejected calls", "Usage and cost", "Invoices", "Budget"]
    named += ["Credit and ledger", "Prices", "Limits", "Settings"]
    expect(links).to_have_text(named)
    sign_out(page)

    sign_in(page, portal.server.admin_key)
    page.get_by_role("link", name="Tenants").click()
    row(page, "Hooli").get_by_role("button", name="Actions for Hooli").click()
    page.get_by_role("menuitem", name="Keys", exact=True).click()
    dialog = act_on_key(page, "billing robot", "Revoke")
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    expect(row(page, "billing robot")).to_contain_text("revoked")
    keys = portal.admin("GET", f"/admin/v1/tenants/{tenant_id}/api_keys")["data"]
    assert [each["revoked_at"] is None for each in keys] == [False, True]


def test_the_key_is_exchanged_and_kept_nowhere(page: Page, portal: PortalUnderTest) -> None:
    _, key = portal.new_tenant("Vandelay")
    sign_in(page, key)
    expect(page.get_by_role("button", name="Account")).to_be_visible()
    kept = page.evaluate(
        "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    assert key.split("_")[2] not in kept
    assert "tenora_session" not in kept
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (
        "tenora_session",
        True,
        "Lax",
    )
    page.reload()
    expect(page.get_by_role("button", name="Account")).to_be_visible()
    other = page.context.new_page()
    other.goto("/")
    sign_out(other)
    expect(other.get_by_label("Key", exact=True)).to_be_visible()
    assert page.context.cookies() == []
    expect(page.get_by_label("Key", exact=True)).to_be_visible()  # the other tab was told


FOCUS_IS_SEEN = """() => {
  const at = document.activeElement;
  if (at.matches('[type=date]:focus-within:not(:focus)')) return true;
  const drawn = (of) => of && getComputedStyle(of).outlineStyle !== 'none';
  const hasCaret = at.matches('textarea, input:not([type=radio], [type=checkbox], [type=file])');
  return at.matches(':focus-visible') && (hasCaret || drawn(at) || drawn(at.nextElementSibling));
}"""
"""An outline, of a segmented control's label beside its hidden input; or a caret. The button within
a date field is the browser's, which draws its outline where no script sees it."""


def tab_to(page: Page, wanted: Locator) -> None:
    """By the Tab key alone; on its way the focus is seen wherever it is."""
    expect(wanted).to_be_visible(timeout=SLOW_MS)
    for _ in range(120):
        page.keyboard.press("Tab")
        where = page.evaluate("() => document.activeElement.outerHTML.slice(0, 200)")
        assert where.startswith("<body") or page.evaluate(FOCUS_IS_SEEN), where
        if wanted.evaluate("(each) => each === document.activeElement"):
            return
    raise AssertionError(f"no number of tabs leads to {wanted}")


def press(page: Page, wanted: Locator) -> None:
    tab_to(page, wanted)
    page.keyboard.press("Enter")


def test_every_flow_by_keyboard_alone(page: Page, portal: PortalUnderTest) -> None:
    _, key = portal.new_tenant("Without a mouse")
    for folder in ("acme-support", "globex-support"):
        add_adapter(portal, key, "support", EXAMPLES / folder)
    page.on("filechooser", lambda _: None)  # from now on, else the key may be there before that is
    tab_to(page, page.get_by_label("Key", exact=True))
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    menu = page.get_by_role("navigation").first
    dialog = page.get_by_role("dialog")

    press(page, menu.get_by_role("link", name="Adapters"))
    send = page.get_by_role("button", name="Upload", exact=True).first
    press(page, send)
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("typed")
    tab_to(page, dialog.get_by_role("button", name="Choose a folder"))
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(EXAMPLES / "acme-json")
    expect(dialog.get_by_text("This adapter would be accepted")).to_be_visible(timeout=SLOW_MS)
    press(page, dialog.get_by_role("button", name="Upload", exact=True))
    expect(dialog).to_have_count(0)
    expect(send).to_be_focused()
    tray = page.get_by_role("complementary", name="Uploads")
    expect(tray.get_by_text("Active: requests can use it")).to_be_visible(timeout=SLOW_MS)
    press(page, tray.get_by_role("button", name="Dismiss typed@1"))
    assert portal.call(key, "GET", "/v1/adapters/typed")["state"] == "active"

    press(page, page.get_by_role("table").get_by_role("link", name="support"))
    tab_to(page, page.get_by_role("tab", name="Overview"))
    page.keyboard.press("ArrowLeft")  # round to the last one
    expect(page.get_by_role("tab", name="Rollout")).to_be_focused()
    for version in (1, 2):
        tab_to(page, page.get_by_role("slider", name=f"Weight of version {version}"))
        page.keyboard.press("End")
        press(page, page.get_by_role("button", name="Apply weights"))
        changes = page.get_by_role("table", name="Alias changes").get_by_role("row")
        expect(changes).to_have_count(1 + version)
    press(page, page.get_by_role("button", name="Roll back"))
    expect(page.get_by_text("rolled back").first).to_be_visible()
    (prod,) = portal.call(key, "GET", "/v1/adapters/support/aliases")["data"]
    assert [each["version"] for each in prod["targets"]] == [1]

    press(page, menu.get_by_role("link", name="Keys"))
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_focused()
    make = page.get_by_role("button", name="Create key")
    press(page, make)
    expect(dialog.get_by_label("Key name")).to_be_focused()
    page.keyboard.type("typed")
    press(page, dialog.get_by_role("button", name="Create key"))
    expect(dialog.get_by_label("Key", exact=True)).to_be_focused()
    press(page, dialog.get_by_role("button", name="Done"))
    expect(make).to_be_focused()
    expect(row(page, "typed")).to_be_visible()

    press(page, menu.get_by_role("link", name="Playground"))
    tab_to(page, page.get_by_label("Prompt"))
    page.keyboard.type("Where is my parcel?")
    page.keyboard.press("Control+Enter")
    pane = page.get_by_role("region", name="Response 1", exact=True)
    expect(pane.get_by_test_id("cost")).to_contain_text("$0.0", timeout=SLOW_MS)

    press(page, menu.get_by_role("link", name="Audit log"))
    entry = page.get_by_role("button", name="api_key.create").first
    press(page, entry)
    expect(dialog.get_by_role("button", name="Close the panel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(entry).to_be_focused()


def test_suspended_and_unknown_keys_are_told_apart(page: Page, portal: PortalUnderTest) -> None:
    sign_in(page, "tn_not_a_key")
    expect(page.get_by_role("alert")).to_contain_text("not valid")

    _, key = portal.new_tenant("Initech")
    page.goto("/operator/tenants")  # any address leads to the door
    sign_in(page, portal.server.admin_key)
    row(page, "Initech").get_by_role("button", name="Actions for Initech").click()
    page.get_by_role("menuitem", name="Suspend").click()
    page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
    expect(row(page, "Initech")).to_contain_text("suspended")
    sign_out(page)
    sign_in(page, key)
    expect(page.get_by_role("alert")).to_contain_text("suspended", timeout=SLOW_MS)


def test_a_tenant_is_deleted_by_name_and_restored(page: Page, portal: PortalUnderTest) -> None:
    tenant, _ = portal.new_tenant("Leaving")
    sign_in(page, portal.server.admin_key)
    page.get_by_role("link", name="Tenants").click()
    row(page, "Leaving").get_by_role("link", name="Leaving").click()
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("menuitem", name="Delete").click()
    dialog = page.get_by_role("dialog")
    delete = dialog.get_by_role("button", name="Delete")
    dialog.get_by_label("Type Leaving to confirm").fill("Leavin")
    expect(delete).to_be_disabled()
    dialog.get_by_label("Type Leaving to confirm").fill("Leaving")
    delete.click()
    banner = page.get_by_role("alert").filter(has_text="This tenant is deleted")
    expect(banner).to_be_visible()
    expect(page.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    assert portal.admin("GET", f"/admin/v1/tenants/{tenant}")["status"] == "suspended"
    banner.get_by_role("button", name="Restore").click()
    expect(banner).to_have_count(0)
    assert portal.admin("GET", f"/admin/v1/tenants/{tenant}")["status"] == "active"


@pytest.mark.parametrize("role", ["tenant", "operator"])
def test_no_page_asks_for_what_the_policy_refuses(
    page: Page, portal: PortalUnderTest, role: str
) -> None:
    key = portal.new_tenant("Umbrella")[1] if role == "tenant" else portal.server.admin_key
    sign_in(page, key)
    expect(page.get_by_role("button", name="Account")).to_be_visible()
    links = page.get_by_role("navigation").get_by_role("link")
    expect(links.first).to_be_visible()
    for at in range(links.count()):
        links.nth(at).click()
        settle(page)
        expect(page.get_by_role("heading").first).to_be_visible()
    for path in sorted(PAGES):  # each as the page that is loaded
        page.goto(path)
        expect(page.get_by_role("button", name="Account")).to_be_visible()
        settle(page)


def test_the_description_is_shown_from_our_own_files(page: Page, portal: PortalUnderTest) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/docs")
    heading = page.get_by_role("heading", name=re.compile("^Tenora"))
    expect(heading).to_be_visible(timeout=SLOW_MS)  # all of the description is laid out first
    operation = page.locator("#operations-operations-operations_health")
    operation.get_by_role("button").first.click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table .response-col_status").last).to_have_text("200")
    elsewhere = [url for url in asked if not url.startswith((f"{portal.url}/", "data:"))]
    assert asked
    assert not elsewhere


def test_what_is_written_into_a_page_does_not_run(page: Page, faults: list[str]) -> None:
    """The check of the check: these refusals are what every other test would fail of."""
    page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.ran = true';
          document.head.append(script);
          const style = document.createElement('style');
          style.textContent = 'body { display: none }';
          document.head.append(style);
          const button = document.createElement('button');
          button.setAttribute('onclick', 'window.ran = true');
          document.body.append(button);
          button.click();
        }"""
    )
    expect(page.locator("body")).to_be_visible()
    assert page.evaluate("() => window.ran") is None
    page.wait_for_function("() => true")
    refused = {fault.split()[3] for fault in faults}
    assert refused == {"script-src-elem", "style-src-elem", "script-src-attr"}, faults
    faults.clear()
