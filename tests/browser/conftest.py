"""A real platform, really running, and a headless Chromium in front of its portal: one for all
files but those that kill it, look at all of its memory or need options, which have their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from busy_platform import Busy, make_busy, set_prices
from portal_under_test import PortalUnderTest, running_portal

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


_shared = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """What the files share ends with the last of them; it would idle beside all other tests."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        _shared.close()


@pytest.fixture(scope="session")
def chromium() -> Browser:
    found = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine; install Debian's package chromium")
    playwright = _shared.enter_context(sync_playwright())
    browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_OPTIONS)
    _shared.callback(browser.close)
    return browser


@pytest.fixture(scope="session")
def portal(
    chromium: Browser, base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> PortalUnderTest:
    """Others have tenants on it too, so that what a test counts is its own tenant's."""
    folder = tmp_path_factory.mktemp("browser")
    portal = _shared.enter_context(running_portal(folder, base_model_dir))
    set_prices(portal)
    return portal


@pytest.fixture(scope="module")
def own_portal(
    chromium: Browser, base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PortalUnderTest]:
    """The same for one file alone."""
    with running_portal(tmp_path_factory.mktemp("browser"), base_model_dir) as made:
        yield made


@pytest.fixture(scope="session")
def busy(portal: PortalUnderTest) -> Busy:
    """What there is on the platform since something has happened on it."""
    return make_busy(portal)


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
