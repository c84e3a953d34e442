"""The house keeps its shape: source roots without `__init__.py`, nothing that shadows a package,
files of readable size, and nothing of one machine in what is committed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (".py", ".ts", ".tsx", ".sh", ".md", ".toml", ".json", ".yml")
LINES_MAX = 520
"""A file is as long as its one idea. Lower caps have cut ideas in two: this one catches what grows
without anybody looking."""


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.mark.parametrize("root", ["kernels", "engine", "platform", "benchmarks"])
def test_source_roots_are_not_packages(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()


def test_no_test_folder_shadows_the_standard_library() -> None:
    assert not (ROOT / "tests" / "platform").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("module", ["platform", "uuid"])
def test_the_standard_library_is_itself_from_the_root(module: str) -> None:
    standard = "sysconfig.get_path('stdlib')"
    code = f"import {module}, sysconfig; print({module}.__file__.startswith({standard}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "True", run.stderr


def test_the_kernels_folder_does_not_break_transformers() -> None:
    code = "from transformers.utils import is_kernels_available; print(is_kernels_available())"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr


def test_files_stay_readable() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked("*.py", "*.ts", "*.tsx")
        if path.name != "schema.d.ts" and (count := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert not long, f"more than {LINES_MAX} lines, so two owners in one file: {long}"


def test_nothing_of_one_machine_is_committed() -> None:
    # Written in pieces so that this file does not match itself.
    paths = re.compile("|".join(["/wo" + "rk/", "/tmp/bash" + "_jobs", "/ro" + "ot/"]))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path.suffix in SOURCE or path.name in ("Makefile", "run")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if paths.search(line)
    ]
    assert not found, found


@pytest.mark.parametrize("package", ["tenora_engine", "tenora_kernels"])
def test_engine_and_kernels_import_without_the_platform(package: str) -> None:
    """A GPU machine has torch and triton, but no web framework and no database."""
    code = f"""
import importlib, pkgutil, sys
banned = ("fastapi", "sqlalchemy", "alembic", "psycopg", "uvicorn", "pydantic", "typer", "redis",
          "obstore", "triton", "peft", "gguf")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in banned:
            raise ImportError("not on this machine: " + name)
sys.meta_path.insert(0, Refuse())
root = importlib.import_module({package!r})
names = [m.name for m in pkgutil.walk_packages(root.__path__, root.__name__ + ".")]
for name in names:
    if ".gpu." not in name and not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > 5


def test_what_belongs_to_one_installation_is_said_in_one_place() -> None:
    """Role names, the schema and advisory locks follow from TENORA_INSTALLATION; one written out
    would be every installation's."""
    rooms = {
        r"pg_(?:try_)?advisory": {"locks.py", "bootstrap.py"},
        r"\b\w+_(?:app|admin)\b['\"]|\bTO (?:tenora|public)\w*": {"installation.py"},
        r"['\"]public['\"]|\bpublic\.": {"installation.py", "locks.py"},
    }
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in tracked("platform/*.py", "migrations/*.py")
        for line in path.read_text().splitlines()
        for pattern, allowed in rooms.items()
        if path.name not in allowed and re.search(pattern, line)
    ]
    assert not found, found


def test_migrations_can_be_read_and_have_one_head() -> None:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    assert len(ScriptDirectory.from_config(config).get_heads()) == 1


def test_errors_of_task_groups_come_out_as_themselves() -> None:
    """A group of errors passes by `except` of what is in it: platform and engine have `task_group`
    in place of asyncio's."""
    wrapped = "platform/tenora_platform/task_groups.py"
    found = {
        str(path.relative_to(ROOT))
        for path in tracked("platform/*.py", "engine/*.py")
        if "TaskGroup()" in path.read_text() or "create_task_group(" in path.read_text()
    }
    assert found <= {wrapped}
