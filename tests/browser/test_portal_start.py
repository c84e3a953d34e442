"""What a browser fetches for a page that is opened directly, seen in the browser."""

from __future__ import annotations

import gzip
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from portal_under_test import REPOSITORY, PortalUnderTest

pytestmark = pytest.mark.browser

DIST = REPOSITORY / "admin_ui" / "dist"
FIRST_SCREEN_KB = 250


def fetched(page: Page) -> list[str]:
    """Paths of all that the page has fetched, once nothing more comes. The live stream does."""
    page.wait_for_timeout(1_000)
    resources = "() => performance.getEntriesByType('resource').map((each) => each.name)"
    return [urlsplit(each).path for each in page.evaluate(resources)]


def kilobytes(paths: list[str]) -> float:
    """Of scripts and styles, gzipped."""
    files = [DIST / each.removeprefix("/") for each in paths if each.endswith((".js", ".css"))]
    return sum(len(gzip.compress(each.read_bytes(), 9)) for each in files) / 1000


def test_sign_in_and_the_first_page_are_small_and_ask_once(
    page: Page, portal: PortalUnderTest
) -> None:
    key = portal.new_tenant("Acme")[1]
    expect(page.get_by_label("Key", exact=True)).to_be_visible()
    door = fetched(page)
    assert 0 < kilobytes(door) <= FIRST_SCREEN_KB
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    page.goto("/overview")  # opened directly
    expect(page.get_by_role("region", name="Quickstart")).to_be_visible()
    first = fetched(page)
    assert kilobytes(door) < kilobytes(first) <= FIRST_SCREEN_KB
    assert first.count("/auth/session") == 1  # what was asked ahead is what the portal takes
    assets = [each for each in first if each.startswith("/assets/")]
    assert len(assets) == len(set(assets))
