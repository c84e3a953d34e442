"""Every setting, and every route of the contract, is documented; what the README names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenora_platform.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `TENORA_{name.upper()}` |" in CONFIGURATION


def test_nothing_documented_is_gone() -> None:
    documented = set(re.findall(r"\| `TENORA_([A-Z_]+)` \|", CONFIGURATION))
    assert documented == {name.upper() for name in Settings.model_fields}


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_links_and_folders_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    named = re.findall(r"`((?:docs|examples|tests|benchmarks)/[\w./-]+)`", text)
    missing = [name for name in links + named if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_of_the_pages_exist(page: str) -> None:
    """As a reader on the page follows them, pictures included."""
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "docs" / page).read_text())
    missing = [link for link in links if not (ROOT / "docs" / link).exists()]
    assert not missing


def test_records_of_decisions_name_modules_that_exist() -> None:
    sources = ("platform", "engine", "kernels", "benchmarks", "tests", "examples", "migrations")
    known = [path.as_posix() for top in sources for path in (ROOT / top).rglob("*.py")]
    known += [path.as_posix() for path in ROOT.glob("*.py")]
    missing = [
        f"{page.name}: {name}"
        for page in sorted((ROOT / "docs/decisions").glob("*.md"))
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text())
        if not any(path.endswith(f"/{name}") for path in known)
    ]
    assert not missing


def test_the_page_of_benchmarks_stays_a_page() -> None:
    """Read in two minutes; how something was measured belongs into docs/log, by date."""
    assert len((ROOT / "docs/benchmarks.md").read_text().split()) < 1500


def tree_of_the_readme() -> dict[str, list[str]]:
    """What the README's tree names: folders and files by the folder at their line's margin."""
    text = (ROOT / "README.md").read_text()
    block = text.split("## The tree\n\n```\n")[1].split("\n```")[0]
    found: dict[str, list[str]] = {}
    top = ""
    for line in block.splitlines():
        names = line.strip().split("  ")[0]
        if line.startswith(" "):
            found[top] += names.split()
        else:
            top = names
            found[top] = []
    return found


def test_the_tree_is_what_there_is() -> None:
    for top, names in tree_of_the_readme().items():
        assert (ROOT / top).is_dir(), top
        missing = [name for name in names if not (ROOT / top / name).exists()]
        assert not missing, f"{top}: {missing}"


@pytest.mark.parametrize("top", ["engine/tenora_engine/", "platform/tenora_platform/"])
def test_the_tree_names_every_package(top: str) -> None:
    packages = {f"{path.parent.name}/" for path in (ROOT / top).glob("*/__init__.py")}
    assert packages - set(tree_of_the_readme()[top]) == set()
