"""The portal's API description is the platform's own: `admin_ui/openapi.json` is what the code says
now, and the TypeScript types are generated from that file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PORTAL = Path(__file__).parents[2] / "admin_ui"
REFRESH = (
    "run `tenora openapi --out admin_ui/openapi.json`, then `npm run generate` in admin_ui, "
    "and commit both files"
)


def search_path() -> str:
    """The PATH with this environment's own programs first, its Node among them."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def test_openapi_json_is_what_the_platform_says(tmp_path: Path) -> None:
    written = tmp_path / "openapi.json"
    command = [sys.executable, "-m", "tenora_platform.cli.main", "openapi", "--out", str(written)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    committed = json.loads((PORTAL / "openapi.json").read_text())
    assert committed == json.loads(written.read_text()), f"out of date: {REFRESH}"


def test_types_are_generated_from_openapi_json(tmp_path: Path) -> None:
    node = shutil.which("node", path=search_path())
    generator = PORTAL / "node_modules" / "openapi-typescript" / "bin" / "cli.js"
    if node is None or not generator.exists():
        pytest.skip("the portal's packages are not installed; `make portal` installs them")
    written = tmp_path / "schema.d.ts"
    command = [node, str(generator), "openapi.json", "--output", str(written), "--alphabetize"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=PORTAL)
    assert made.returncode == 0, made.stderr
    committed = (PORTAL / "src" / "api" / "schema.d.ts").read_text()
    assert committed == written.read_text(), f"out of date: {REFRESH}"
