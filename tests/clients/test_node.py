"""The openai package for Node, in its own script and by Node's own test runner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from client_checks import Tenora


def test_the_openai_package_for_node(tenora: Tenora) -> None:
    names = {"TENORA_URL": tenora.url, "TENORA_KEY": tenora.key, "TENORA_MODEL": tenora.model}
    run = subprocess.run(
        ["node", "--test", "checks.mjs"],
        cwd=Path(__file__).parent / "node",
        env={**os.environ, **names},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
