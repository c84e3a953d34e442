"""Signing in at a certified provider, as a browser does it: there and back, first owner,
invitation, roles, removal, rotation of the provider's keys, and what must not be believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from api_harness import Api, running_api
from oidc_provider import CLIENT, PUBLIC_URL, Browser, RunningProvider, certified_provider
from tenora_platform.people.auth_routes import is_local
from tenora_platform.people.oidc import Provider
from tenora_platform.people.sessions import SECURE_COOKIE as COOKIE
from tenora_platform.settings import Settings

FLOW = "__Host-tenora_sign_in"


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with certified_provider() as running:
        yield running


@pytest.fixture(scope="module")
def settings(settings: Settings, provider: RunningProvider) -> Settings:
    client_id, client_secret = CLIENT
    return settings.model_copy(
        update={
            "public_url": PUBLIC_URL,
            "oidc_issuer": provider.issuer,
            "oidc_client_id": client_id,
            "oidc_client_secret": SecretStr(client_secret),
            "oidc_name": "Acme",
            "oidc_owner_email": "BOSS@example.com",
        }
    )


@pytest.fixture(scope="module")
async def api(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(settings, tmp_path_factory.mktemp("oidc")) as made:
        yield made


Open = Callable[[Api], Browser]


@pytest.fixture
async def new_browser() -> AsyncIterator[Open]:
    """`new_browser(api)`: one with no cookies yet."""
    async with AsyncExitStack() as stack:

        def made(api: Api) -> Browser:
            browser = Browser(api)
            stack.push_async_callback(browser.http.aclose)
            return browser

        yield made


@pytest.fixture
def browser(api: Api, new_browser: Open) -> Browser:
    return new_browser(api)


async def member(api: Api, browser: Browser, tenant_id: str, role: str, login: str) -> Browser:
    """The browser of somebody who was invited by the operator and has accepted."""
    await browser.sign_in(login)
    path = f"/admin/v1/tenants/{tenant_id}/invitations"
    made = await api.admin("POST", path, json={"role": role})
    assert made.status_code == 201, made.text
    joined = await accept(browser, made.json()["link"])
    assert joined.status_code == 200, joined.text
    return browser


async def accept(browser: Browser, link: str) -> httpx.Response:
    token = link.removeprefix(f"{PUBLIC_URL}/invitation#")
    return await browser.call("POST", "/auth/invitations/accept", json={"token": token})


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_there_and_back(api: Api, browser: Browser) -> None:
    assert (await browser.open("/auth/methods")).json()["oidc"] == "Acme"
    assert code_of(await browser.open("/auth/session")) == (401, "not_signed_in")
    seen = await browser.sign_in("kim", next_path="/auth/session")
    said = seen.json()
    assert (said["type"], said["tenants"], said["operator_role"]) == ("person", [], None)
    assert said["person"]["email"] == "kim@example.com"
    assert said["person"]["name"] == "The kim"
    # Signed in, and nothing more, with words of what to do.
    for path in ("/v1/me", "/v1/usage", "/admin/v1/tenants"):
        refused = await browser.open(path)
        assert code_of(refused) == (403, "no_membership")
        assert "invitation" in refused.json()["error"]["message"]
    (cookie,) = [each for each in browser.http.cookies.jar if each.name == COOKIE]
    assert cookie.secure
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert not any(str(cookie.value) in url or "csrf" in url for url in browser.seen)
    assert not any("token" in url for url in browser.seen)
    first = next(url for url in browser.seen if "/auth?" in url)
    for asked in ("code_challenge_method=S256", "state=", "nonce=", "response_type=code"):
        assert asked in first
    assert FLOW not in browser.http.cookies


async def test_the_same_person_again(api: Api, browser: Browser) -> None:
    first = (await browser.sign_in("sam", "/auth/session")).json()
    second = (await browser.sign_in("sam", "/auth/session")).json()  # signed in at the provider
    assert first["person"]["id"] == second["person"]["id"]
    assert first["id"] != second["id"]
    listed = (await browser.open("/auth/sessions")).json()["data"]
    assert [each["id"] for each in listed] == [second["id"]], "the first was replaced"


async def test_the_first_owner(api: Api, browser: Browser) -> None:
    said = (await browser.sign_in("boss", "/auth/session")).json()
    assert said["operator_role"] == "owner"
    made = await browser.call("POST", "/admin/v1/tenants", json={"name": "by a person"})
    assert made.status_code == 201, made.text
    log = (await browser.open("/admin/v1/audit_logs?limit=1")).json()["data"]
    assert log[0]["actor"] == f"person:{said['person']['id']}"
    me = (await browser.open("/v1/me")).json()
    assert (me["type"], me["roles"], me["person"]["email"]) == (
        "person",
        ["owner"],
        "boss@example.com",
    )


async def test_an_address_that_nobody_checked_makes_no_owner(api: Api, browser: Browser) -> None:
    said = (await browser.sign_in("boss-unverified", "/auth/session")).json()
    assert said["person"]["email"] == "boss@example.com"
    assert said["operator_role"] is None


async def test_an_invitation_is_for_one_and_once(api: Api, new_browser: Open) -> None:
    tenant = await api.new_tenant("inviting")
    owner = await member(api, new_browser(api), tenant.id, "owner", "olga")
    made = await owner.call("POST", "/v1/invitations", json={"role": "developer"})
    assert made.status_code == 201, made.text
    link = made.json()["link"]
    assert link.startswith(f"{PUBLIC_URL}/invitation#")
    listed = (await owner.open("/v1/invitations")).json()["data"]
    assert (listed[0]["id"], listed[0]["state"]) == (made.json()["id"], "open")
    assert "link" not in listed[0]
    async with api.state.db.admin_session() as session:
        rows = (await session.execute(text("select t::text from invitations t"))).scalars().all()
    assert not any(link.split("#")[1] in row for row in rows)

    name = (await owner.open("/v1/me")).json()["tenant"]["name"]
    token = {"token": link.split("#")[1]}
    offer = await api.http.post("/auth/invitations/look", json=token)  # by who is not signed in yet
    assert (offer.json()["tenant_name"], offer.json()["role"]) == (name, "developer")
    one, other = new_browser(api), new_browser(api)
    await one.sign_in("dave")
    await other.sign_in("eve")
    answers = await asyncio.gather(accept(one, link), accept(other, link))
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    winner = one if answers[0].status_code == 200 else other
    assert (await winner.open("/v1/me")).json()["roles"] == ["developer"]
    assert code_of(await accept(owner, link)) == (400, "invitation_over")
    assert code_of(await api.http.post("/auth/invitations/look", json=token)) == (
        400,
        "invitation_over",
    )
    again = await owner.call("POST", "/v1/invitations", json={"role": "viewer"})
    assert code_of(await accept(winner, again.json()["link"])) == (409, "already_member")


async def test_an_invitation_for_an_address(api: Api, new_browser: Open) -> None:
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}/invitations"
    body = {"role": "viewer", "email": "Fay@Example.com"}
    link = (await api.admin("POST", path, json=body)).json()["link"]
    for login, expected in (("gus", 403), ("fay-unverified", 403), ("fay", 200)):
        browser = new_browser(api)
        await browser.sign_in(login)
        assert (await accept(browser, link)).status_code == expected, login


@pytest.mark.parametrize("end", ["withdrawn", "expired"])
async def test_an_invitation_that_is_over(api: Api, browser: Browser, end: str) -> None:
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}/invitations"
    made = (await api.admin("POST", path, json={"role": "viewer"})).json()
    if end == "withdrawn":
        assert (await api.admin("DELETE", f"{path}/{made['id']}")).status_code == 200
    else:
        async with api.state.db.admin_session() as session:
            await session.execute(
                text("update invitations set expires_at = now() where id = :id"), made
            )
    await browser.sign_in("hal")
    assert code_of(await accept(browser, made["link"])) == (400, "invitation_over")


async def test_a_removed_member_is_out_in_every_process(
    api: Api, settings: Settings, tmp_path: Path, new_browser: Open
) -> None:
    tenant = await api.new_tenant("leaving")
    owner = await member(api, new_browser(api), tenant.id, "owner", "ida")
    leaver = await member(api, new_browser(api), tenant.id, "developer", "joe")
    async with running_api(settings, tmp_path) as second:
        there = new_browser(second)
        there.http.cookies = leaver.http.cookies
        for each in (leaver, there):
            assert (await each.open("/v1/adapters")).status_code == 200
        person_id = (await leaver.open("/auth/session")).json()["person"]["id"]
        viewer = {"role": "viewer"}
        changed = await owner.call("PATCH", f"/v1/people/{person_id}", json=viewer)
        assert changed.json()["role"] == "viewer"
        assert code_of(await there.call("POST", "/v1/uploads", json={"bytes": 3})) == (
            403,
            "insufficient_role",
        )
        gone = await owner.call("DELETE", f"/v1/people/{person_id}")
        assert gone.status_code == 200
        for each in (leaver, there):
            assert code_of(await each.open("/v1/adapters")) == (401, "session_over")
    log = await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}&limit=3")
    actions = [(each["action"], each["before"], each["after"]) for each in log.json()["data"]]
    said = {"person_id": person_id, "email": "joe@example.com"}
    assert actions[0] == ("member.remove", {**said, "role": "viewer"}, None)
    assert actions[1] == (
        "member.update",
        {**said, "role": "developer"},
        {**said, "role": "viewer"},
    )


async def test_the_last_owner_stays(api: Api, new_browser: Open) -> None:
    tenant = await api.new_tenant("owned")
    one = await member(api, new_browser(api), tenant.id, "owner", "kay")
    mine = (await one.open("/auth/session")).json()["person"]["id"]
    path = f"/v1/people/{mine}"
    assert code_of(await one.call("DELETE", path)) == (409, "last_owner")
    assert code_of(await one.call("PATCH", path, json={"role": "viewer"})) == (409, "last_owner")
    other = await member(api, new_browser(api), tenant.id, "owner", "lee")
    theirs = (await other.open("/auth/session")).json()["person"]["id"]
    # Both leave at once: one of them stays.
    answers = await asyncio.gather(
        one.call("DELETE", path), other.call("DELETE", f"/v1/people/{theirs}")
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409]


async def test_somebody_of_two_tenants_says_which(api: Api, new_browser: Open) -> None:
    first, second = await api.new_tenant("first"), await api.new_tenant("second")
    browser = await member(api, new_browser(api), first.id, "owner", "mia")
    path = f"/admin/v1/tenants/{second.id}/invitations"
    made = await api.admin("POST", path, json={"role": "viewer"})
    await accept(browser, made.json()["link"])
    assert code_of(await browser.open("/v1/usage")) == (400, "tenant_required")
    said = (await browser.open("/auth/session")).json()["tenants"]
    assert [(t["id"], t["role"]) for t in said] == [(first.id, "owner"), (second.id, "viewer")]
    for tenant, role in ((first, "owner"), (second, "viewer")):
        me = await browser.open("/v1/me", headers={"x-tenora-tenant": tenant.id})
        assert (me.json()["tenant"]["id"], me.json()["roles"]) == (tenant.id, [role])
    nobodys = await browser.open("/v1/me", headers={"x-tenora-tenant": "tenant_x"})
    assert code_of(nobodys) == (403, "not_a_member")


async def test_what_a_person_does_has_their_name(api: Api, new_browser: Open) -> None:
    tenant = await api.new_tenant()
    browser = await member(api, new_browser(api), tenant.id, "owner", "noa")
    mine = (await browser.open("/auth/session")).json()["person"]["id"]
    made = await browser.call("POST", "/v1/api_keys", json={"name": "ci"})
    assert made.status_code == 201, made.text
    log = await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}&limit=1")
    assert log.json()["data"][0]["actor"] == f"person:{mine}"


async def test_signing_out(api: Api, browser: Browser) -> None:
    await browser.sign_in("pia")
    token = browser.http.cookies[COOKIE]
    left = (await browser.call("POST", "/auth/logout")).json()
    assert left["provider_url"].startswith(f"{api.state.settings.oidc_issuer}/session/end?")
    assert "post_logout_redirect_uri=https" in left["provider_url"]
    assert COOKIE not in browser.http.cookies
    browser.http.cookies.set(COOKIE, token, domain="tenora.example")
    assert code_of(await browser.open("/v1/me")) == (401, "session_over")


async def test_the_provider_changes_its_keys(
    api: Api, provider: RunningProvider, browser: Browser, new_browser: Open
) -> None:
    await browser.sign_in("rae")
    provider.rotate()
    other = new_browser(api)
    assert (await other.sign_in("sue", "/auth/session")).json()["person"]["name"] == "The sue"


async def test_a_planted_session_is_not_the_one_afterwards(
    api: Api, browser: Browser, new_browser: Open
) -> None:
    attacker = new_browser(api)
    await attacker.sign_in("mallory")
    planted = attacker.http.cookies[COOKIE]
    browser.http.cookies.set(COOKIE, planted, domain="tenora.example", path="/")
    await browser.sign_in("victor")
    assert browser.http.cookies[COOKIE] != planted
    assert code_of(await attacker.open("/v1/me")) == (401, "session_over")


async def answer_of_the_provider(browser: Browser, login: str) -> str:
    """The address at which the provider sends the browser back, not gone to yet."""
    browser.http.follow_redirects = False
    page = await browser.open("/auth/login")
    for _ in range(12):
        if page.is_redirect:
            url = page.headers["location"]
            if url.startswith(PUBLIC_URL):
                return str(url)
            page = await browser.http.get(page.url.join(url))
        else:
            page = await browser.fill_in(login, page)
    raise AssertionError(page.text[:500])


async def test_an_answer_to_another_browser_signs_nobody_in(
    api: Api, browser: Browser, new_browser: Open
) -> None:
    """Sign-in forced upon somebody: the attacker's own answer, sent to the victim."""
    url = await answer_of_the_provider(browser, "trudy")
    victim = new_browser(api)
    assert code_of(await victim.open(url)) == (400, "sign_in_not_begun")
    victim.http.follow_redirects = False
    await victim.open("/auth/login")  # has begun one of their own
    assert code_of(await victim.open(url)) == (400, "sign_in_not_begun")
    assert COOKIE not in victim.http.cookies
    assert (await browser.open(url)).status_code == 303
    # The same answer once more: the provider takes a code once, and the flow's cookie is gone.
    assert code_of(await browser.open(url)) == (400, "sign_in_not_begun")


@pytest.mark.parametrize("field", ["state", "code", "iss"])
async def test_a_changed_answer(api: Api, browser: Browser, field: str) -> None:
    url = httpx.URL(await answer_of_the_provider(browser, "uma"))
    changed = await browser.open(str(url.copy_set_param(field, "https://other.example")))
    expected = (400, "sign_in_not_begun") if field == "state" else (401, "sign_in_refused")
    assert code_of(changed) == expected
    assert COOKIE not in browser.http.cookies


@pytest.mark.parametrize("field", ["nonce", "verifier"])
async def test_a_flow_that_does_not_fit_the_token(api: Api, browser: Browser, field: str) -> None:
    url = await answer_of_the_provider(browser, "vic")
    provider = api.state.provider
    assert isinstance(provider, Provider)
    seal = provider._seal
    flow = msgspec.json.decode(seal.decrypt(browser.http.cookies[FLOW]))
    flow[field] = "another" * 9
    browser.http.cookies.clear()
    sealed = seal.encrypt(msgspec.json.encode(flow)).decode()
    browser.http.cookies.set(FLOW, sealed, domain="tenora.example")
    assert code_of(await browser.open(url)) == (401, "sign_in_refused")


async def test_a_flow_from_too_long_ago(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await answer_of_the_provider(browser, "wes")
    monkeypatch.setattr("tenora_platform.people.oidc.FLOW_S", -1)
    assert code_of(await browser.open(url)) == (400, "sign_in_not_begun")


async def test_a_person_is_led_back_to_the_portal(api: Api, browser: Browser) -> None:
    browser.http.follow_redirects = False
    answer = await browser.open(
        "/auth/callback?code=x&state=y", headers={"accept": "text/html,*/*"}
    )
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/?sign_in=sign_in_not_begun",
    )


@pytest.mark.parametrize(
    "away",
    ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "", "/\t/evil.example",
     "/x\r\nset-cookie: a=b", "javascript:alert(1)", "/é"],
)  # fmt: skip
async def test_next_leads_nowhere_else(api: Api, browser: Browser, away: str) -> None:
    assert not is_local(away)
    refused = await browser.open("/auth/login", params={"next": away})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "next")


async def test_a_provider_that_is_away(
    api: Api, settings: Settings, tmp_path: Path, new_browser: Open
) -> None:
    gone = settings.model_copy(update={"oidc_issuer": "http://127.0.0.1:1"})
    async with running_api(gone, tmp_path) as alone:
        answer = await new_browser(alone).open("/auth/login")
        assert code_of(answer) == (503, "sign_in_unavailable")
        by_a_person = await alone.http.get("/auth/login", headers={"accept": "text/html"})
        assert by_a_person.status_code == 303
        assert by_a_person.headers["location"] == "/?sign_in=sign_in_unavailable"
        assert (await alone.http.get("/readyz")).status_code == 200


async def test_a_provider_of_another_name(
    api: Api, settings: Settings, provider: RunningProvider, tmp_path: Path, new_browser: Open
) -> None:
    wrong = settings.model_copy(update={"oidc_issuer": f"{provider.issuer}/"})
    async with running_api(wrong, tmp_path) as misled:
        answer = await new_browser(misled).open("/auth/login")
        assert code_of(answer) == (503, "sign_in_unavailable")
