"""Each page of the portal's table, with data in it, in both themes and four widths: axe-core finds
nothing, nothing scrolls sideways, there is one heading and a title of its own, and each
amount of money and each count is one that the API has said, to the last digit. The pictures are
left in the folder that TENORA_SCREENSHOTS names, by default in pytest's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import Response as PageResponse

from busy_platform import Busy
from page_checks import (
    SHIFT_MAX,
    WATCH_NUMBERS,
    WATCH_SHIFTS,
    WIDTHS,
    amounts,
    counts,
    go_to,
    pages,
    settle,
    shifted,
    sideways,
    violations,
)
from portal_under_test import PortalUnderTest

SIDES = ("tenant", "admin")
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("TENORA_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.getbasetemp() / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


SignedIn = Callable[[str, str], Page]


@pytest.fixture(scope="module")
def signed_in(chromium: Browser, portal: PortalUnderTest, busy: Busy) -> Iterator[SignedIn]:
    """A tab of one side in one theme; signed in once."""
    tabs: dict[tuple[str, str], Page] = {}

    def tab(side: str, theme: str) -> Page:
        if (side, theme) not in tabs:
            scheme: Literal["dark", "light"] = "dark" if theme == "dark" else "light"
            context = chromium.new_context(
                base_url=portal.url, color_scheme=scheme, reduced_motion="reduce"
            )
            context.set_default_timeout(20_000)
            context.add_init_script(WATCH_NUMBERS)
            page = tabs[side, theme] = context.new_page()
            page.goto("/")
            key = busy.key if side == "tenant" else portal.server.admin_key
            page.get_by_label("Key", exact=True).fill(key)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("navigation").first.wait_for()
        return tabs[side, theme]

    yield tab
    for page in tabs.values():
        page.context.close()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("side", SIDES)
def test_pages_are_for_everybody(
    side: str, theme: str, signed_in: SignedIn, busy: Busy, pictures: Path
) -> None:
    page = signed_in(side, theme)
    wrong: list[str] = []

    def on_answer(answer: PageResponse) -> None:
        if answer.status >= 500:
            wrong.append(f"{answer.status} of {answer.url}")

    page.on("response", on_answer)
    titles: dict[str, str] = {}
    shown: dict[str, bool] = {}
    counted: dict[str, bool] = {}
    for path in (each.path for each in pages() if each.side == side):
        page.set_viewport_size({"width": WIDTHS[2], "height": 900})
        address = busy.address(path)
        go_to(page, address)
        settle(page)
        if urlsplit(page.url).path != address:
            continue  # a page that a key does not open
        wrong += [
            f"{path} {theme}: {found}" for found in violations(page, colours_only=theme != "light")
        ]
        shown |= amounts(page)
        wrong += [
            f"{path}: {each} is no answer's"
            for each, told in {**amounts(page), **counts(page)}.items()
            if not told
        ]
        counted |= counts(page)
        headings = page.locator("h1").count()
        if headings != 1:
            wrong.append(f"{path}: {headings} h1")
        titles[path] = page.title()
        name = path.strip("/").replace("/", "-").replace(":", "") or "root"
        for width in WIDTHS if theme == "light" else WIDTHS[2:3]:
            page.set_viewport_size({"width": width, "height": 900})
            if (beyond := sideways(page)) > 0:
                wrong.append(f"{path} at {width}: {beyond} pixels too wide")
            if width in (WIDTHS[0], WIDTHS[2]):
                page.screenshot(path=pictures / f"{side}-{name}-{theme}-{width}.png")
    assert not wrong, "\n".join(wrong)
    assert len(shown) > 5, shown
    assert len(counted) > 5, counted
    assert all(title.endswith(" · Tenora") for title in titles.values()), titles
    assert len(set(titles.values())) == len(titles), titles


@pytest.mark.parametrize("side", SIDES)
def test_pages_stay_where_they_are_while_they_load(
    side: str, chromium: Browser, portal: PortalUnderTest, busy: Busy
) -> None:
    context = chromium.new_context(
        base_url=portal.url, viewport={"width": WIDTHS[2], "height": 900}
    )
    context.add_init_script(WATCH_SHIFTS)
    page = context.new_page()
    page.goto("/")
    key = busy.key if side == "tenant" else portal.server.admin_key
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("navigation").first.wait_for()
    moved = {}
    for path in (each.path for each in pages() if each.side == side):
        page.goto(busy.address(path))
        moved[path] = shifted(page)
    context.close()
    assert len(moved) > 10, moved
    assert not {path: by for path, by in moved.items() if by > SHIFT_MAX}


def test_a_second_currency_is_shown(
    signed_in: SignedIn, busy: Busy, portal: PortalUnderTest
) -> None:
    """On every page that has amounts of several lists; what is shown was told by the server, which
    the walk over all pages tests."""
    shows = {
        "tenant": ("/overview", "/adapters", "/usage", "/invoices"),
        "admin": ("/operator/tenants", "/operator/tenants/:tenant", "/operator/billing"),
    }
    for side, paths in shows.items():
        page = signed_in(side, "light")
        page.set_viewport_size({"width": WIDTHS[2], "height": 900})
        for path in paths:
            go_to(page, busy.address(path))
            settle(page)
            for sign in "$€":
                expect(page.get_by_role("main"), path).to_contain_text(re.compile(rf"\{sign}\d"))
    page = signed_in("tenant", "light")
    go_to(page, "/overview")
    told = portal.call(busy.key, "GET", "/v1/forecast")["currencies"]
    assert [each["currency"] for each in told] == ["EUR", "USD"]
    for each, sign in zip(told, "€$", strict=True):
        spent = page.get_by_test_id(f"spent-{each['currency']}")
        expect(spent).to_have_text(re.compile(rf"^\{sign}[\d.]+$"))
        assert Decimal(spent.inner_text().removeprefix(sign)) == Decimal(each["spent"])
    totals = {
        (each["status"], each["currency"])
        for each in portal.call(busy.key, "GET", "/v1/invoices")["data"]
    }
    assert totals == {("final", "EUR"), ("final", "USD")}
    go_to(page, "/invoices")
    rows = page.get_by_role("table", name="Invoices").get_by_role("row")
    expect(rows).to_have_count(3)


def test_a_page_opened_from_another_has_the_focus_on_its_heading(signed_in: SignedIn) -> None:
    for side in SIDES:
        page = signed_in(side, "light")
        page.set_viewport_size({"width": WIDTHS[2], "height": 900})
        settle(page)  # the first page of a visit takes no focus, so it must have been there
        links = page.get_by_role("navigation").first.get_by_role("link")
        for index in range(links.count()):
            link = links.nth(index)
            if link.get_attribute("aria-current") == "page":
                continue
            link.focus()
            page.keyboard.press("Enter")
            page.wait_for_function("() => document.activeElement?.tagName === 'H1'")
            settle(page)
