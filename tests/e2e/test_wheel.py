"""The wheel: what `tenora up` needs lies in it, nothing else does, and its code finds it there."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = "tenora_platform/_bundled"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--wheel-dir", str(folder), "."]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    (found,) = folder.glob("*.whl")
    return found


def names_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def below(folder: str, *patterns: str) -> set[str]:
    """The files of a folder of the checkout, as it would be named in a listing of itself."""
    found = (path for pattern in patterns for path in (ROOT / folder).rglob(pattern))
    return {str(path.relative_to(ROOT / folder)) for path in found if path.is_file()}


def test_all_that_is_needed_is_in_it(wheel: Path) -> None:
    names = names_of(wheel)
    for name in below("migrations", "*.py", "*.mako"):
        assert f"{BUNDLED}/migrations/{name}" in names
    for name in below("kernels/tenora_kernels/compiled/src", "*"):
        assert f"tenora_kernels/compiled/src/{name}" in names
    manifest = json.loads((ROOT / "examples/adapters/manifest.json").read_text())
    for entry in manifest:
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            assert f"{BUNDLED}/examples/{entry['folder']}/{file}" in names
    for package in ("tenora_kernels", "tenora_engine", "tenora_platform", "tenora_bench"):
        assert f"{package}/__init__.py" in names
    for name in below("admin_ui/dist", "*"):  # when the portal has been built here
        assert f"{BUNDLED}/portal/{name}" in names


def test_nothing_else_is_in_it(wheel: Path) -> None:
    names = names_of(wheel)
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"tenora_kernels", "tenora_engine", "tenora_platform", "tenora_bench"}
    for name in names:
        parts = name.split("/")
        assert not {"node_modules", "tests", "__pycache__", "_build", ".data"} & set(parts), name
        assert not name.endswith((".so", ".pyc", ".ts", ".tsx", ".map")), name
    assert wheel.stat().st_size < 50 * 1024**2


def test_its_code_finds_them_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = """
import pathlib, tenora_platform, tenora_platform.resources as r
from tenora_platform.settings import Settings
assert r.is_installed()
assert (r.migrations_folder() / "env.py").is_file()
assert (r.examples_folder() / "manifest.json").is_file()
assert Settings(data_dir="d").kernels_dir == pathlib.Path("d/kernels").resolve()
print(pathlib.Path(tenora_platform.__file__).parent)
"""
    path = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(tmp_path / "site" / "tenora_platform")


def test_a_checkout_uses_its_own_files() -> None:
    from tenora_platform import resources
    from tenora_platform.settings import Settings

    assert not resources.is_installed()
    assert resources.migrations_folder() == ROOT / "migrations"
    assert resources.portal_folder() == ROOT / "admin_ui" / "dist"
    assert Settings().kernels_dir is None
