"""The portal with a sign-in provider, in a real browser: through the provider and back, no access
yet, an invitation's link, an owner's page of people, out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from pydantic import SecretStr

from api_harness import ADMIN_KEY
from oidc_provider import CLIENT, certified_provider
from page_checks import SHIFT_MAX, WATCH_SHIFTS, shifted
from portal_under_test import REPOSITORY
from shell import served_in_a_thread
from tenora_bench.server import free_port
from tenora_platform.settings import Settings

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a portal before a fake engine."""
    if not (REPOSITORY / "admin_ui" / "dist" / "index.html").is_file():
        pytest.skip("the portal is not built; run `make portal`")
    port = free_port()
    public_url = f"http://127.0.0.1:{port}"
    with certified_provider(public_url) as provider:
        client_id, client_secret = CLIENT
        signing_in = settings.model_copy(
            update={
                "public_url": public_url,
                "oidc_issuer": provider.issuer,
                "oidc_client_id": client_id,
                "oidc_client_secret": SecretStr(client_secret),
                "oidc_name": "Acme Login",
            }
        )
        folder: Path = tmp_path_factory.mktemp("people")
        with served_in_a_thread(signing_in, folder, port):
            yield public_url


@pytest.fixture
def owner(chromium: Browser, url: str) -> Iterator[Page]:
    with chromium.new_context(base_url=url) as context:
        context.add_init_script(WATCH_SHIFTS)
        yield context.new_page()


@pytest.fixture
def guest(chromium: Browser, url: str) -> Iterator[Page]:
    with chromium.new_context(base_url=url) as context:
        yield context.new_page()


def sign_in(page: Page, login: str) -> None:
    """Through the provider's two forms."""
    page.get_by_role("link", name="Sign in with Acme Login").click()
    page.get_by_placeholder("Enter any login").fill(login)
    page.get_by_placeholder("and password").fill("x")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def admin(url: str, method: str, path: str, body: dict[str, str]) -> dict[str, str]:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    answer = httpx.request(method, f"{url}{path}", json=body, headers=headers)
    answer.raise_for_status()
    found: dict[str, str] = answer.json()
    return found


def test_from_an_invitation_to_a_colleague(url: str, owner: Page, guest: Page) -> None:
    owner.goto("/")
    sign_in(owner, "olga")
    expect(owner.get_by_role("heading", name="No access yet")).to_be_visible()
    expect(owner.get_by_text("olga@example.com")).to_be_visible()

    tenant = admin(url, "POST", "/admin/v1/tenants", {"name": "Acme"})
    path = f"/admin/v1/tenants/{tenant['id']}/invitations"
    owner.goto(admin(url, "POST", path, {"role": "owner"})["link"])
    assert owner.evaluate("() => location.hash") == "", "the token has left the address"
    owner.get_by_role("button", name="Join").click()
    owner.get_by_role("link", name="People").click()
    people = owner.get_by_role("table", name="People")
    expect(people).to_contain_text("olga@example.com")
    expect(people.get_by_label("Role of olga@example.com")).to_have_value("owner")

    owner.get_by_role("button", name="Invite").click()
    owner.get_by_label("Role", exact=True).select_option("viewer")
    owner.get_by_role("button", name="Create link").click()
    link = owner.get_by_label("Link", exact=True).input_value()
    owner.get_by_role("button", name="Done").click()
    expect(owner.get_by_role("table", name="Open invitations")).to_contain_text("viewer")

    guest.goto(link)
    sign_in(guest, "gus")  # and back at the invitation
    guest.get_by_role("button", name="Join").click()
    expect(guest.get_by_role("link", name="Usage and cost")).to_be_visible()
    names = guest.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert "Keys" not in names, "a viewer looks on"
    assert {"Overview", "Adapters", "Requests", "Usage and cost", "Invoices"} <= {*names}

    owner.reload()
    assert shifted(owner) < SHIFT_MAX
    row = people.get_by_role("row").filter(has_text="gus@example.com")
    row.get_by_role("button", name="Remove").click()
    owner.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    guest.reload()
    expect(guest.get_by_role("button", name="Sign in")).to_be_visible()  # sessions end with it
