"""What lies in front of the API: the portal's own pages and nothing else, /health and /version,
every method of a path, and pages of other origins."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from api_harness import Api
from described import document
from platform_fixtures import MakeApi
from tenora_platform.inference.flights import Flights
from tenora_platform.portal import PAGES

ROUTES = Path(__file__).parents[2] / "admin_ui" / "src" / "routes.tsx"
ORIGIN = "https://app.example"


def test_every_page_of_the_portal_may_be_asked_for_directly() -> None:
    paths = re.findall(r'page\(\s*"(/[^"]*)"', ROUTES.read_text())
    assert len(paths) > 5
    assert {path.split("/")[1] for path in paths if path != "/"} <= PAGES


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "portal" / "assets").mkdir(parents=True)
    (tmp_path / "portal" / "index.html").write_text("<html>portal</html>")
    (tmp_path / "portal" / "assets" / "a.js").write_text("1")
    return tmp_path / "portal"


async def test_the_portal_answers_for_its_own_pages(make_api: MakeApi, built: Path) -> None:
    below = ("/adapters/support@prod", "/requests/req_01", "/operator/tenants/t_1", "/adapters/a.b")
    async with make_api(portal_dir=built) as api:
        for page in ("/", *(f"/{each}" for each in PAGES), *below):
            assert "portal" in (await api.http.get(page)).text, page
        assert (await api.http.get("/assets/a.js")).text == "1"
        for unknown in ("/healthx", "/v2/chat", "/adaptersx", "/index", "/a%00b", "/assets/b.js"):
            answer = await api.http.get(unknown)
            assert answer.status_code == 404, unknown
            assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_browser_at_an_unknown_address_is_shown_a_page(
    make_api: MakeApi, built: Path
) -> None:
    as_browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with make_api(portal_dir=built) as api:
        for unknown in ("/nowhere", "/overviews/1", "/favicon.bmp"):
            answer = await api.http.get(unknown, headers=as_browser)
            assert (answer.status_code, "portal" in answer.text) == (404, True), unknown
            assert "script-src" in answer.headers["content-security-policy"]
        for of_the_api in ("/v1/nowhere", "/admin/v1/nowhere", "/assets/gone.js"):
            answer = await api.http.get(of_the_api, headers=as_browser)
            assert answer.status_code == 404
            assert "error" in answer.json(), of_the_api


async def test_a_page_names_what_it_loads(make_api: MakeApi, built: Path) -> None:
    (built / "index.html").write_text("<head></head>portal")
    (built / "docs.html").write_text("<head></head>docs")
    async with make_api(portal_dir=built) as api:
        assert (await api.http.get("/adapters")).text == "<head></head>portal"
        listed = {"/adapters": ["assets/a.js"], "/adapters/:name": ["assets/b.js", "assets/b.css"]}
        (built / "preloads.json").write_text(json.dumps(listed))
        session = '<link rel="preload" as="fetch" href="/auth/session" crossorigin>'
        script = '<link rel="modulepreload" href="/assets/{}.js" crossorigin>'
        style = '<link rel="stylesheet" href="/assets/b.css" crossorigin>'
        for path, links in {
            "/": "",
            "/adapters/": script.format("a"),
            "/adapters/mine@prod": script.format("b") + style,
            "/adapters/mine/report": "",
        }.items():
            page = (await api.http.get(path)).text
            assert page == f"<head>{session}{links}</head>portal", path
        assert (await api.http.get("/docs")).text == "<head></head>docs"


@pytest.mark.parametrize(
    ("taken", "sent"),
    [
        ("br, gzip", "br"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0, br;q=0.5", "br"),
        ("*", "br"),
        ("identity", None),
        ("gzip;q=0, *;q=0.0", None),
    ],
)
async def test_files_come_in_the_smallest_form_that_is_taken(
    make_api: MakeApi, built: Path, taken: str, sent: str | None
) -> None:
    script = b"let tenants = 1;" * 100
    (built / "assets" / "a.js").write_bytes(script)
    for ending in (".gz", ".br"):
        (built / "assets" / f"a.js{ending}").write_bytes(gzip.compress(script) + ending.encode())
    async with make_api(portal_dir=built) as api:
        request = api.http.build_request("GET", "/assets/a.js", headers={"accept-encoding": taken})
        answer = await api.http.send(request, stream=True)
        raw = b"".join([each async for each in answer.aiter_raw()])
        assert answer.headers.get("content-encoding") == sent
        assert "accept-encoding" in answer.headers["vary"]
        assert "javascript" in answer.headers["content-type"]
        assert raw.endswith({"br": b".br", "gzip": b".gz", None: b"= 1;"}[sent])
        asked = {"accept-encoding": taken, "if-none-match": f'"other", {answer.headers["etag"]}'}
        again = await api.http.get("/assets/a.js", headers=asked)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == answer.headers["etag"]
        # Another encoding is another representation.
        asked["accept-encoding"] = "identity" if sent else "br"
        assert (await api.http.get("/assets/a.js", headers=asked)).status_code == 200


@pytest.mark.parametrize("url", [None, "https://tenora.example"])
async def test_only_behind_https_do_browsers_learn_to_stay_there(
    make_api: MakeApi, built: Path, url: str | None
) -> None:
    async with make_api(portal_dir=built, public_url=url) as api:
        for path in ("/", "/assets/a.js"):
            headers = (await api.http.get(path)).headers
            assert ("strict-transport-security" in headers) is (url is not None)
            assert "camera=()" in headers["permissions-policy"]
            assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_pages_come_under_a_policy_with_a_fresh_nonce(make_api: MakeApi, built: Path) -> None:
    for name in ("index.html", "docs.html"):
        text = '<meta nonce="__TENORA_CSP_NONCE__"><script nonce="__TENORA_CSP_NONCE__"></script>'
        (built / name).write_text(text)
    nonces = set()
    async with make_api(portal_dir=built) as api:
        for page in ("/", "/", "/adapters", "/docs", "/docs/", "/index.html", "/docs.html"):
            answer = await api.http.get(page)
            policy = answer.headers["content-security-policy"]
            found = set(re.findall('nonce="([^"]+)"', answer.text))
            assert len(found) == 1
            assert f"style-src 'self' 'nonce-{found.copy().pop()}'" in policy
            nonces |= found
            for word in ("default-src 'none'", "script-src 'self';", "frame-ancestors 'none'"):
                assert word in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            # Kept, or confirmed by 304, it would come with the nonce of another time.
            assert answer.headers["cache-control"] == "no-store"
            assert not {"etag", "last-modified"} & set(answer.headers)
        script = await api.http.get("/assets/a.js")
        assert script.headers["x-content-type-options"] == "nosniff"
        assert "javascript" in script.headers["content-type"]
        assert script.headers["content-security-policy"].startswith("default-src 'none'")
    assert len(nonces) == 7


async def test_what_a_key_may_read_is_kept_by_nobody_on_the_way(
    make_api: MakeApi, built: Path
) -> None:
    async with make_api(portal_dir=built) as api:
        tenant = await api.new_tenant()
        asked = {"model": "fake-base", "prompt": "x"}
        answers = {
            200: await api.call(tenant.key, "GET", "/v1/me"),
            201: await api.call(tenant.key, "POST", "/v1/api_keys", json={}),
            400: await api.call(tenant.key, "POST", "/v1/completions", json={"prompt": 1}),
            401: await api.http.get("/admin/v1/tenants"),
            404: await api.admin("GET", "/admin/v1/tenants/tenant_none"),
        }
        more = [await api.call(tenant.key, "POST", "/v1/completions", json=asked)]
        more += [await api.admin("GET", "/admin/v1/audit_logs/export")]
        for answer in (*answers.values(), *more):
            assert answer.headers["x-content-type-options"] == "nosniff", answer.url
            assert answer.headers["cache-control"] == "no-store", answer.url
        assert {status: each.status_code for status, each in answers.items()} == {
            status: status for status in answers
        }
        # What says for itself how long it may be kept is kept so long.
        script = await api.http.get("/assets/a.js")
        assert script.headers.get_list("cache-control") == ["public, max-age=31536000, immutable"]
        known = await api.http.get(
            "/assets/a.js", headers={"if-none-match": script.headers["etag"]}
        )
        assert known.status_code == 304
        stream = await api.call(
            tenant.key, "POST", "/v1/completions", json=asked | {"stream": True}
        )
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers.get_list("cache-control") == ["no-cache"]
        assert stream.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_docs_without_a_built_portal_say_so(make_api: MakeApi, tmp_path: Path) -> None:
    async with make_api(portal_dir=tmp_path / "nothing") as api:
        answer = await api.http.get("/docs")
        assert answer.status_code == 503
        assert answer.headers["content-type"].startswith("text/plain")
        assert "make portal" in answer.text
        assert "/openapi.json" in answer.text
        assert (await api.http.get("/openapi.json")).status_code == 200


async def test_health_is_readiness_and_version_exists(make_api: MakeApi) -> None:
    async with make_api() as api:
        paths = ("/health", "/health_generate")
        assert {(await api.http.get(path)).status_code for path in paths} == {200}
        await api.engine.stop()
        assert {(await api.http.get(path)).status_code for path in paths} == {503}
        assert (await api.http.get("/version")).json() == {"version": version("tenora")}


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/api_keys", {"GET", "POST"}),
        ("/admin/v1/tenants/t", {"GET", "PATCH"}),
        ("/v1/adapters/a", {"GET", "DELETE"}),
    ],
)
async def test_a_refused_method_names_all_that_are_allowed(
    api: Api, path: str, allowed: set[str]
) -> None:
    answer = await api.http.put(path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) >= allowed
    assert "PUT" not in answer.headers["allow"]


async def test_pages_of_listed_origins_may_call(make_api: MakeApi) -> None:
    asks = {"origin": ORIGIN, "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization,content-type"
    async with make_api(cors_origins=f"{ORIGIN}, https://other.example") as api:
        preflight = await api.http.options("/v1/chat/completions", headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        refused = await api.http.post(
            "/v1/chat/completions", headers={"origin": ORIGIN}, content=b"{}"
        )
        assert refused.status_code == 401  # without a key, and the page may read why
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in refused.headers["access-control-expose-headers"]
        stranger = await api.http.get("/healthz", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers
    async with make_api() as api:
        answer = await api.http.get("/healthz", headers={"origin": ORIGIN})
        assert "access-control-allow-origin" not in answer.headers


def test_the_description_says_which_key_a_route_takes() -> None:
    described = document()
    schemes = described["components"]["securitySchemes"]
    assert {name: scheme.get("scheme", scheme.get("in")) for name, scheme in schemes.items()} == {
        "tenantKey": "bearer",
        "adminKey": "bearer",
        "session": "cookie",
    }
    session: dict[str, list[str]] = {"session": []}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            if path.startswith(("/v1/people", "/v1/invitations")):
                assert operation["security"] == [session]
            elif path.startswith("/v1/"):
                both: list[dict[str, list[str]]] = [{"tenantKey": []}, {"adminKey": []}]
                keys = both if path == "/v1/me" else both[:1]
                assert operation["security"] == [*keys, session]
            elif path.startswith("/admin/"):
                assert operation["security"] == [{"adminKey": []}, session]
            elif path.startswith("/auth/"):
                assert operation["security"] in ([], [session])
            else:
                assert {} in operation["security"] or operation["security"] == []


async def test_an_application_ends_though_its_work_swallows_a_cancellation(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As redis-py does when it is cancelled while it connects: the application once never ended."""
    cancelled: list[None] = []

    async def stubborn(self: Flights) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(None)
        await asyncio.Event().wait()

    monkeypatch.setattr(Flights, "keep_watch", stubborn)
    async with asyncio.timeout(20):
        async with make_api() as api:
            assert (await api.http.get("/healthz")).status_code == 200
    assert cancelled == [None]
