"""Access in a real browser: in by a key and out, in every tab; keys, webhooks with a server that
really listens, the audit log with its proof, sessions, and the search."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from standardwebhooks import Webhook

from api_harness import ADMIN_KEY
from platform_fixtures import Connection
from portal_under_test import REPOSITORY
from shell import served_in_a_thread
from tenora_bench.server import free_port
from tenora_platform.settings import Settings

pytestmark = pytest.mark.browser
SLOW_MS = 20_000


@pytest.fixture(scope="module")
def url(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a portal before a fake engine."""
    if not (REPOSITORY / "admin_ui" / "dist" / "index.html").is_file():
        pytest.skip("the portal is not built; run `make portal`")
    port = free_port()
    near = settings.model_copy(
        update={"webhook_private_addresses": True, "public_url": f"http://127.0.0.1:{port}"}
    )
    folder: Path = tmp_path_factory.mktemp("access")
    with served_in_a_thread(near, folder, port) as listening:
        yield listening.url


@pytest.fixture
def context(chromium: Browser, url: str) -> Iterator[BrowserContext]:
    with chromium.new_context(base_url=url, viewport={"width": 1320, "height": 900}) as made:
        made.set_default_timeout(SLOW_MS)
        yield made


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


class Receiver:
    """An endpoint's server: what came, and what it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def call(url: str, key: str, method: str, path: str, **more: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.request(method, f"{url}{path}", headers=headers, timeout=30, **more)
    answer.raise_for_status()
    return answer.json()


def new_tenant(url: str, name: str, **key: Any) -> tuple[str, dict[str, Any]]:
    """The id and a key of a new tenant."""
    tenant = call(url, ADMIN_KEY, "POST", "/admin/v1/tenants", json={"name": name})["id"]
    path = f"/admin/v1/tenants/{tenant}/api_keys"
    return tenant, call(url, ADMIN_KEY, "POST", path, json={"name": "first", **key})


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


def sign_out(page: Page) -> None:
    page.get_by_role("button", name="Account").click()
    page.get_by_role("menuitem", name="Sign out").click()


def test_the_door_says_what_is_wrong_with_a_key(url: str, page: Page) -> None:
    _, key = new_tenant(url, "Acme", scopes=["usage"])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    page.goto("/limits")
    expect(page.get_by_label("Key", exact=True)).to_be_visible()
    asked.clear()
    sign_in(page, key["key"][:8] + "é")
    expect(page.get_by_role("alert")).to_contain_text("“é” at position 9")
    assert "POST" not in asked, "it was not sent"
    sign_in(page, "tn_abcd1234_unknown")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    sign_in(page, key["key"])
    # A key of one scope comes in, to the page that was asked for.
    expect(page.get_by_role("heading", name="Limits", level=1)).to_be_visible()
    expect(page.get_by_role("banner")).to_contain_text("Acme")
    page.get_by_role("button", name="Account").click()
    expect(page.get_by_role("menu")).to_contain_text(f"tn_{key['prefix']}…")
    assert key["key"].rsplit("_", 1)[-1] not in page.content()


def test_out_in_one_tab_is_out_in_every_tab(url: str, page: Page) -> None:
    _, key = new_tenant(url, "Acme")
    page.goto("/keys")
    sign_in(page, key["key"])
    expect(page.get_by_role("table", name="Keys")).to_be_visible()
    other = page.context.new_page()
    other.goto("/limits")
    expect(other.get_by_role("heading", name="Limits", level=1)).to_be_visible()
    sign_out(other)
    expect(page.get_by_role("status")).to_contain_text("in another tab")
    assert page.context.cookies() == []
    sign_in(other, key["key"])  # and in again: the first tab is back where it was
    expect(page.get_by_role("table", name="Keys")).to_be_visible()


def test_a_revoked_key_is_noticed_by_whatever_page_is_open(url: str, page: Page) -> None:
    tenant, key = new_tenant(url, "Acme")
    path = f"/admin/v1/tenants/{tenant}/api_keys"
    second = call(url, ADMIN_KEY, "POST", path, json={"name": "second"})
    page.goto("/limits?from=here")
    sign_in(page, key["key"])
    expect(page.get_by_role("table", name="Plan limits")).to_be_visible()
    call(url, ADMIN_KEY, "DELETE", f"{path}/{key['id']}")
    expect(page.get_by_role("status").first).to_contain_text("has expired")
    sign_in(page, second["key"])
    expect(page.get_by_role("table", name="Plan limits")).to_be_visible()
    assert page.url.endswith("/limits?from=here")


def test_a_key_is_made_searched_rotated_and_revoked(url: str, page: Page) -> None:
    tenant, key = new_tenant(url, "Acme")
    page.goto("/keys")
    sign_in(page, key["key"])
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key name").fill("robot")
    dialog.get_by_label("keys", exact=True).uncheck()
    dialog.get_by_role("button", name="Models, expiry and limits").click()
    dialog.get_by_label("Requests per minute").fill("10")
    dialog.get_by_label("Monthly budget").fill("12.50")
    dialog.get_by_label("Expires at the end of (UTC)").fill("2099-12-31")
    dialog.get_by_role("button", name="Create key").click()
    secret = dialog.get_by_label("Key", exact=True).input_value()
    page.keyboard.press("Escape")  # neither this nor a click beside it loses the key
    page.mouse.click(5, 5)
    expect(dialog.get_by_label("Key", exact=True)).to_have_value(secret)
    dialog.get_by_role("button", name="Done").click()
    me = call(url, secret, "GET", "/v1/me")["key"]
    assert (me["name"], me["limits"]["requests_per_min"]) == ("robot", 10)
    assert me["expires_at"] == "2099-12-31T23:59:59Z"
    assert "keys" not in me["scopes"]

    page.get_by_role("searchbox", name="Search keys").fill(me["prefix"])
    rows = page.get_by_role("table", name="Keys").get_by_role("row")
    expect(rows).to_have_count(2)  # the head's and the one
    expect(rows.nth(1)).to_contain_text("10 requests/min")
    page.get_by_role("button", name="Actions for robot").click()
    page.get_by_role("menuitem", name="Rotate").click()
    page.get_by_role("dialog").get_by_text("Immediately").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    rotated = page.get_by_role("dialog").get_by_label("Key", exact=True).input_value()
    page.get_by_role("dialog").get_by_role("button", name="Done").click()
    assert call(url, rotated, "GET", "/v1/me")["key"]["id"] == me["id"]
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        call(url, secret, "GET", "/v1/me")
    page.get_by_role("searchbox", name="Search keys").fill("robot")
    page.get_by_role("button", name="Actions for robot").click()
    page.get_by_role("menuitem", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(rows.nth(1)).to_contain_text("revoked")
    page.get_by_text("Active", exact=True).click()
    expect(page.get_by_text("No keys match these filters")).to_be_visible()
    # By the operator's hand the list moves by itself.
    page.goto("/keys")
    path = f"/admin/v1/tenants/{tenant}/api_keys"
    call(url, ADMIN_KEY, "POST", path, json={"name": "from outside"})
    expect(page.get_by_role("table", name="Keys")).to_contain_text("from outside")


def test_events_reach_an_endpoint_that_was_made_here(
    url: str, page: Page, receiver: Receiver
) -> None:
    _, key = new_tenant(url, "Acme")
    page.goto("/webhooks")
    sign_in(page, key["key"])
    page.get_by_role("button", name="Add endpoint").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("URL").fill(receiver.url)
    dialog.get_by_label("Selected events").check()
    dialog.get_by_label("key.created").check()
    dialog.get_by_role("button", name="Add endpoint").click()
    secret = dialog.get_by_label("Signing secret").input_value()
    page.keyboard.press("Escape")
    expect(dialog.get_by_label("Signing secret")).to_be_visible()
    dialog.get_by_role("button", name="Done").click()
    page.get_by_role("link", name=receiver.url).click()
    call(url, key["key"], "POST", "/v1/api_keys", json={"name": "told of"})
    row = page.get_by_role("table", name="Deliveries").get_by_role("row").nth(1)
    expect(row).to_contain_text("delivered", timeout=SLOW_MS)
    headers, body = receiver.got[0]
    Webhook(secret).verify(body, headers)
    assert json.loads(body)["data"]["name"] == "told of"

    receiver.status = 503
    call(url, key["key"], "POST", "/v1/api_keys", json={"name": "not taken"})
    expect(row).to_contain_text("status 503", timeout=SLOW_MS)
    expect(row).to_contain_text("waiting")
    page.get_by_role("searchbox", name="Search deliveries").fill("503")
    expect(page.get_by_role("table", name="Deliveries").get_by_role("row")).to_have_count(2)
    page.get_by_role("searchbox", name="Search deliveries").fill("")
    receiver.status = 204
    came = len(receiver.got)
    done = page.get_by_role("row").filter(has_text="delivered").first
    done.get_by_role("button", name="Retry").click()
    deadline = time.monotonic() + SLOW_MS / 1000
    again: list[str] = []
    while headers["webhook-id"] not in again and time.monotonic() < deadline:
        page.wait_for_timeout(50)  # the worker has it from the table, beside what it tries again
        again = [each["webhook-id"] for each, _ in receiver.got[came:]]
    assert headers["webhook-id"] in again
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_text("Disabled: by its owner")).to_be_visible()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No endpoints yet")).to_be_visible()


def test_dead_letters_are_sent_again(url: str, page: Page, receiver: Receiver) -> None:
    _, key = new_tenant(url, "Acme")
    receiver.status = 503
    hook = {"url": receiver.url, "types": ["key.created"]}
    made = call(url, key["key"], "POST", "/v1/webhook_endpoints", json=hook)
    call(url, key["key"], "POST", "/v1/api_keys", json={"name": "not taken"})
    page.goto(f"/webhooks/{made['id']}")
    sign_in(page, key["key"])
    row = page.get_by_role("table", name="Deliveries").get_by_role("row").nth(1)
    expect(row).to_contain_text("status 503", timeout=SLOW_MS)
    page.get_by_role("button", name="Disable").click()  # its next attempt is its last
    expect(row).to_contain_text("failed", timeout=SLOW_MS)
    page.get_by_role("button", name="Enable").click()
    page.get_by_text("failed", exact=True).first.click()
    receiver.status = 204
    page.get_by_role("button", name="Retry all failed deliveries").click()
    expect(page.get_by_role("status").filter(has_text="queued for another attempt")).to_have_text(
        "1 is queued for another attempt."
    )
    page.get_by_text("All", exact=True).click()
    expect(row).to_contain_text("delivered", timeout=SLOW_MS)
    tried = {headers["webhook-id"] for headers, _ in receiver.got}
    assert len(tried) == 1, "the same event, for who takes it twice"


def test_the_audit_log_shows_what_changed_and_proves_itself(
    url: str, page: Page, owner: Connection
) -> None:
    tenant, key = new_tenant(url, "Audited")
    path = f"/admin/v1/tenants/{tenant}"
    call(url, ADMIN_KEY, "PATCH", path, json={"name": "Audited Inc"})
    page.goto(f"/operator/audit?tenant={tenant}")
    sign_in(page, ADMIN_KEY)
    table = page.get_by_role("table", name="Audit log")
    expect(table.get_by_role("row")).to_have_count(4)
    table.get_by_role("button", name="tenant.update").click()
    changes = page.get_by_role("table", name="Changed fields")
    expect(changes.get_by_role("row")).to_have_count(2)
    expect(changes.get_by_role("row").nth(1)).to_have_text("nameAuditedAudited Inc")
    page.keyboard.press("Escape")
    page.get_by_label("Action").select_option("Tenant API keys")
    expect(table.get_by_role("row")).to_have_count(2)
    page.get_by_label("Action").select_option("All actions")
    page.get_by_role("searchbox", name="Search the audit log").fill("api_key.create")
    expect(table.get_by_role("row")).to_have_count(2)

    page.get_by_role("button", name="Verify hash chains").click()
    expect(page.get_by_text("No entry was modified")).to_be_visible()
    where = [tenant, 2]
    owner.execute("alter table audit_logs disable trigger append_only")
    try:
        forge = "update audit_logs set actor = %s where chain = %s and seq = %s returning actor"
        before = owner.execute(
            "select actor from audit_logs where chain = %s and seq = %s", where
        ).fetchone()
        assert before is not None
        owner.execute(forge, ["admin_key:nobody", *where])
        page.get_by_role("button", name="Verify hash chains").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text(f"of chain {tenant} was changed after it was written")
        owner.execute(forge, [before[0], *where])
    except psycopg.Error:
        pytest.fail("the log could not be forged as a superuser can")
    finally:
        owner.execute("alter table audit_logs enable trigger append_only")
    page.get_by_role("button", name="Verify hash chains").click()
    expect(page.get_by_text("No entry was modified")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export all").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert tenant in {json.loads(line)["chain"] for line in lines}

    # The tenant sees its own part, and who of the operator's it was only as that.
    own = page.context.browser.new_context(base_url=url) if page.context.browser else None
    assert own is not None
    with own:
        tenants = own.new_page()
        tenants.goto("/audit")
        sign_in(tenants, key["key"])
        mine = tenants.get_by_role("table", name="Audit log")
        expect(mine.get_by_role("row")).to_have_count(5)
        expect(mine.get_by_role("row").nth(1)).to_contain_text("session.begin")
        expect(mine.get_by_role("row").nth(2)).to_contain_text("operator")
        with tenants.expect_download() as download:
            tenants.get_by_role("button", name="Export all").click()
        assert download.value.suggested_filename == "audit_log.jsonl"
        lines = Path(download.value.path()).read_text().splitlines()
        assert [(each["chain"], each["seq"]) for each in map(json.loads, lines)] == [
            (tenant, seq) for seq in (1, 2, 3, 4)
        ]


def test_sessions_are_seen_and_ended(url: str, page: Page, chromium: Browser) -> None:
    _, key = new_tenant(url, "Acme")
    page.goto("/account")
    sign_in(page, key["key"])
    with chromium.new_context(base_url=url, user_agent="Firefox/140.0 (Windows)") as elsewhere:
        other = elsewhere.new_page()
        other.goto("/limits")
        sign_in(other, key["key"])
        expect(other.get_by_role("heading", name="Limits", level=1)).to_be_visible()
        page.reload()
        sessions = page.get_by_role("table", name="Sessions")
        expect(sessions.get_by_role("row")).to_have_count(3)
        expect(sessions.get_by_role("row").filter(has_text="this browser")).to_have_count(1)
        page.get_by_role("button", name="End the session of Firefox on Windows").click()
        expect(sessions.get_by_role("row")).to_have_count(2)
        expect(other.get_by_role("status").first).to_contain_text("has expired")


def test_the_operator_gives_access_by_role(url: str, page: Page, chromium: Browser) -> None:
    page.goto("/operator/access")
    sign_in(page, ADMIN_KEY)
    page.get_by_role("button", name="Create admin key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key name").fill("Olga's laptop")
    dialog.get_by_label("Role").select_option("read_only")
    dialog.get_by_role("button", name="Create admin key").click()
    secret = dialog.get_by_label("Admin key").input_value()
    dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("table", name="Admin keys").get_by_role("row").filter(has_text="Olga's")
    expect(row).to_contain_text("read_only")
    with chromium.new_context(base_url=url) as elsewhere:
        reader = elsewhere.new_page()
        reader.goto("/operator/access")
        sign_in(reader, secret)
        expect(reader.get_by_role("table", name="Admin keys")).to_be_visible()
        expect(reader.get_by_role("button", name="Create admin key")).to_have_count(0)
        reader.goto("/operator/webhooks")
        expect(reader.get_by_role("heading", name="Webhooks")).to_be_visible()
        expect(reader.get_by_role("button", name="Add endpoint")).to_have_count(0)
        row.get_by_role("button", name="Revoke Olga's laptop").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(row).to_contain_text("revoked")
        reader.reload()
        expect(reader.get_by_label("Key", exact=True)).to_be_visible()


def test_everything_is_found_from_anywhere(url: str, page: Page) -> None:
    _, key = new_tenant(url, "Searched Ltd")
    robot = call(url, key["key"], "POST", "/v1/api_keys", json={"name": "nightly robot"})
    page.goto("/limits")
    sign_in(page, key["key"])
    expect(page.get_by_role("heading", name="Limits", level=1)).to_be_visible()
    page.keyboard.press("Control+k")
    field = page.get_by_label("Search for")
    expect(field).to_be_focused()
    field.fill("webh")
    expect(page.get_by_role("option", name="Webhooks")).to_be_visible()
    field.fill("nightly")
    expect(page.get_by_role("option", name="nightly robot")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()
    table = page.get_by_role("table", name="Keys")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table).to_contain_text(robot["prefix"])
    sign_out(page)
    sign_in(page, ADMIN_KEY)
    expect(page.get_by_role("button", name="Account")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_label("Search for").fill("searched l")
    expect(page.get_by_role("option", name="Searched Ltd")).to_be_visible()
