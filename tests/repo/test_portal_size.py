"""How much a browser loads before it shows something: the first screen is small, and what only a
later page needs comes with that page. Read from what the last build has left (admin_ui/dist)."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

PORTAL = Path(__file__).parents[2] / "admin_ui"
DIST = PORTAL / "dist"
FIRST_SCREEN_KB = 250
LATER = {
    "uPlot, the charts": "u-legend",
    "dropping of files": "isFileDialogActive",
    "Swagger UI": "swagger-ui",
    "the search": "A page, tenant, adapter",
    "notifications": "notifications-progress",
}
"""Words of libraries that the door does not need."""


@pytest.fixture(scope="module")
def chunks() -> dict[str, Any]:
    listed = DIST / "chunks.json"
    if not listed.is_file():
        pytest.skip("the portal is not built; run `make portal`")
    found: dict[str, Any] = json.loads(listed.read_text())
    return found


def loaded(chunks: dict[str, Any], *names: str) -> set[str]:
    """The files that these chunks need at once: theirs and, in turn, those they import."""
    seen: set[str] = set()
    waiting, files = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        chunk = chunks[name]
        files |= {chunk["file"], *chunk.get("css", ())}
        waiting += chunk.get("imports", ())
    return files


def kilobytes(files: Iterable[str]) -> float:
    return sum(len(gzip.compress((DIST / each).read_bytes(), 9)) for each in files) / 1000


def pages_of(chunks: dict[str, Any], side: str) -> list[str]:
    before, after = f"src/{side}/", "/Page.tsx"
    return [name for name in chunks if name.startswith(before) and name.endswith(after)]


def first_page(side: str) -> str:
    table = (PORTAL / "src" / "routes.tsx").read_text()
    first = re.search(rf'\bpage\(\s*"/.*?import\("\./({side}/\w+/Page)"\)', table, re.DOTALL)
    assert first is not None
    return first[1]


@pytest.mark.parametrize("page", [*map(first_page, ("tenant", "operator")), "signin/SignInPage"])
def test_the_first_screen_is_small(chunks: dict[str, Any], page: str) -> None:
    """Frame, charts and the page that one comes to, or the sign-in. Letters in our own type come
    when they come: the browser shows another type until then."""
    if f"src/{page}.tsx" not in chunks:
        pytest.skip("the portal was built from older sources; run `make portal`")
    size = kilobytes(loaded(chunks, "index.html", f"src/{page}.tsx"))
    assert size <= FIRST_SCREEN_KB, f"{size:.0f} kB, gzipped"


def test_every_page_names_what_the_browser_is_to_fetch_for_it(chunks: dict[str, Any]) -> None:
    listed = DIST / "preloads.json"
    if not listed.is_file():
        pytest.skip("the portal was built from older sources; run `make portal`")
    preloads = json.loads(listed.read_text())
    table = (PORTAL / "src" / "routes.tsx").read_text()
    assert set(preloads) == set(re.findall(r'\bpage\(\s*"([^"]+)"', table))
    door = loaded(chunks, "index.html")
    wanted = loaded(chunks, f"src/{first_page('tenant')}.tsx") - door
    assert set(preloads["/overview"]) == wanted


def test_letters_are_small_and_not_waited_for(chunks: dict[str, Any]) -> None:
    fonts = [chunk["file"] for name, chunk in chunks.items() if "inter-latin-wght-normal" in name]
    assert [(DIST / each).stat().st_size < 50_000 for each in fonts] == [True]
    styles = [DIST / each for each in loaded(chunks, "index.html") if each.endswith(".css")]
    faces = re.findall(r"@font-face\{[^}]*\}", "".join(each.read_text() for each in styles))
    assert faces
    assert all("font-display:swap" in face for face in faces)


def test_every_page_comes_by_its_own_chunk(chunks: dict[str, Any]) -> None:
    first = loaded(chunks, "index.html")
    for side in ("tenant", "operator"):
        for page in pages_of(chunks, side):
            assert chunks[page].get("isDynamicEntry"), page
            assert chunks[page]["file"] not in first, page


def test_the_door_loads_nothing_that_only_later_pages_need(chunks: dict[str, Any]) -> None:
    scripts = [DIST / each for each in loaded(chunks, "index.html") if each.endswith(".js")]
    text = "".join(each.read_text(encoding="utf-8") for each in scripts)
    found = [what for what, word in LATER.items() if word in text]
    assert not found


def test_what_gets_smaller_is_there_in_both_forms(chunks: dict[str, Any]) -> None:
    files = [chunk["file"] for chunk in chunks.values()]
    for name in (each for each in files if each.endswith((".js", ".css"))):
        plain, packed = (DIST / name).read_bytes(), DIST / f"{name}.gz"
        if len(plain) > 1000:
            assert gzip.decompress(packed.read_bytes()) == plain, name
            assert (DIST / f"{name}.br").stat().st_size < packed.stat().st_size, name
