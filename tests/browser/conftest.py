"""A real platform, really running, and a headless Chromium in front of its portal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from portal_under_test import REPOSITORY, PortalUnderTest
from tenora_bench.server import serve

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Without these a fresh Chromium calls home at every start; as root it also needs --no-sandbox.
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine; install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def portal(
    chromium: Browser, base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PortalUnderTest]:
    if not (REPOSITORY / "admin_ui" / "dist" / "index.html").is_file():
        pytest.skip("the portal is not built; run `make portal`")
    data = tmp_path_factory.mktemp("browser") / "data"
    with serve(data, base_model_dir, []) as server:
        yield PortalUnderTest(server, data)


@pytest.fixture
def faults() -> list[str]:
    """Script errors, and what the content security policy refused, on any page so far."""
    return []


@pytest.fixture
def page(chromium: Browser, portal: PortalUnderTest, faults: list[str]) -> Iterator[Page]:
    """A fresh tab at the portal; a fault on any page fails the test."""
    context = chromium.new_context(base_url=portal.url, viewport={"width": 1320, "height": 900})
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    context.expose_function("refusedByPolicy", lambda what: faults.append(what))
    context.add_init_script(
        "addEventListener('securitypolicyviolation', (event) => refusedByPolicy("
        "`refused by policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"
    )
    page.goto("/")
    yield page
    context.close()
    assert not faults, faults
