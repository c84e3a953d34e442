"""A newcomer's first minutes: the first page says how to send a request, exactly as it works, and
what is searched for closes as it was opened."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from portal_under_test import PortalUnderTest

pytestmark = pytest.mark.browser

SLOW_MS = 120_000


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account")).to_be_visible()


def run(command: list[str], key: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "TENORA_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quickstart_works_as_printed(page: Page, portal: PortalUnderTest) -> None:
    _, key = portal.new_tenant("Newcomer")
    sign_in(page, key)
    panel = page.get_by_role("region", name="Quickstart")
    expect(panel).to_contain_text(f"{portal.url}/v1")
    expect(panel.get_by_role("link", name="API documentation")).to_have_attribute("href", "/docs")
    code = panel.get_by_role("group", name="A first request in curl")
    model = portal.call(key, "GET", "/v1/models")["data"][0]["id"]
    expect(code).to_contain_text(model)
    curl = code.inner_text()
    panel.get_by_text("Python", exact=True).click()
    code = panel.get_by_role("group", name="A first request in Python")
    expect(code).to_contain_text("OpenAI")
    python = code.inner_text()
    assert '"object":"chat.completion"' in run(["sh", "-c", curl], key).replace(" ", "")
    assert run([sys.executable, "-c", python], key).strip()
    # It is the usual page as soon as the first request is in the books.
    expect(page.get_by_role("region", name="Errors by status")).to_be_visible(timeout=SLOW_MS)
    expect(panel).to_have_count(0)


def test_the_search_opens_and_closes_by_keyboard(page: Page, portal: PortalUnderTest) -> None:
    _, key = portal.new_tenant("Searcher")
    sign_in(page, key)
    field = page.get_by_label("Search for")
    for close in ("Escape", "Control+k"):
        page.keyboard.press("Control+k")
        expect(field).to_be_focused()
        page.keyboard.type("key")
        expect(page.get_by_role("option", name=re.compile("Keys"))).to_be_visible()
        page.keyboard.press(close)
        expect(field).to_have_count(0)
