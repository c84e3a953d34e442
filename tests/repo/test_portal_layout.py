"""The portal's house rules: a folder for each page, what it asks of the server in one file of that
name, no `any`, and a table of pages that names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenora_platform.portal import PAGES

SOURCES = Path(__file__).parents[2] / "admin_ui" / "src"
ROUTES = SOURCES / "routes.tsx"
ASKS = re.compile(
    r"hooks\.use(Query|Mutation)|client\.(GET|POST|PUT|PATCH|DELETE)\b|InfiniteQuery\("
)
ASKERS = {"queries.ts", "paged.ts", "methods.ts", "InvitationPage.tsx"}
"""The last two are at the door, where there are no pages yet; paged.ts is what queries.ts share."""
GENERATED = SOURCES / "api" / "schema.d.ts"
NO_PAGES = {"upload"}  # a dialog and a tray over every page


def sources() -> list[Path]:
    found = [*SOURCES.rglob("*.ts"), *SOURCES.rglob("*.tsx")]
    assert len(found) > 100
    return [path for path in found if path != GENERATED]


@pytest.mark.parametrize("side", ["tenant", "operator"])
def test_every_page_is_a_folder_and_in_the_table(side: str) -> None:
    folders = {path.name for path in (SOURCES / side).iterdir() if path.is_dir()} - NO_PAGES
    named = set(re.findall(rf'import\("\./{side}/([^/"]+)/Page"\)', ROUTES.read_text()))
    assert folders == named
    for folder in folders:
        page = SOURCES / side / folder / "Page.tsx"
        assert "export default function" in page.read_text(), page


def test_what_is_asked_of_the_server_is_in_files_of_that_name() -> None:
    elsewhere = [
        str(path.relative_to(SOURCES))
        for path in sources()
        if path.name not in ASKERS and ASKS.search(path.read_text())
    ]
    assert elsewhere == []


def test_nothing_is_any() -> None:
    loose = re.compile(r":\s*any\b|<any>|as any\b|@ts-ignore|@ts-nocheck")
    assert [str(path) for path in sources() if loose.search(path.read_text())] == []


def test_the_server_knows_every_page() -> None:
    """What it does not know is answered with 404, though the portal would show it."""
    paths = re.findall(r'"/([a-z]+)[^"]*"', ROUTES.read_text())
    assert set(paths) | {"invitation"} == PAGES  # which is before anybody has signed in
