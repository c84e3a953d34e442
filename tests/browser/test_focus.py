"""Who works by keyboard is put back to where a dialog was asked for."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from busy_platform import add_adapter
from portal_under_test import REPOSITORY, PortalUnderTest

pytestmark = pytest.mark.browser

EXAMPLE = REPOSITORY / "examples" / "adapters" / "acme-support"


@pytest.mark.parametrize(
    ("path", "menu", "entry"),
    [
        ("/keys", "Actions for browser", "Edit"),  # unmounted when it goes
        ("/keys", "Actions for browser", "Revoke"),
        ("/adapters/mine", "More actions for mine", "Delete adapter"),  # closed, and stays mounted
    ],
)
def test_a_dialog_of_a_menu_gives_the_focus_to_the_menus_button(
    page: Page, portal: PortalUnderTest, path: str, menu: str, entry: str
) -> None:
    key = portal.new_tenant("Acme")[1]
    add_adapter(portal, key, "mine", EXAMPLE)
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.goto(path)
    button = page.get_by_role("button", name=menu)
    for leave in ("Escape", "Cancel"):
        button.focus()
        page.keyboard.press("Enter")
        page.get_by_role("menuitem", name=entry).press("Enter")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        if leave == "Escape":
            page.keyboard.press("Escape")
        else:
            dialog.get_by_role("button", name=leave).click()
        expect(dialog).to_be_hidden()
        expect(button).to_be_focused()
