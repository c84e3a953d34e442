"""The engine's modules: none imports in a circle, and no function is longer than one can hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "engine" / "tenora_engine"
FUNCTION_LINES_MAX = 70


def modules() -> dict[str, ast.Module]:
    return {
        ".".join(("tenora_engine", *path.relative_to(ENGINE).with_suffix("").parts)): ast.parse(
            path.read_text()
        )
        for path in ENGINE.rglob("*.py")
    }


def imports(module: ast.Module) -> Iterator[str]:
    """When it is imported itself; what is named for types alone is not."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_modules_import_each_other() -> None:
    left = {name: set(imports(module)) for name, module in modules().items()}
    while left:
        ready = {name for name, needs in left.items() if not needs & left.keys()}
        assert ready, f"a circle among {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in ready}


def test_functions_stay_readable() -> None:
    long = {
        f"{name}.{node.name}": lines
        for name, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert not long, f"more than {FUNCTION_LINES_MAX} lines: {long}"
