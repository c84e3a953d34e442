"""LiteLLM's proxy on the same load: in an environment of its own, before the least of upstreams.

It has less to do than ours. Its virtual keys, their limits and their spend need a database by
way of prisma, whose engines are not on PyPI; so it checks one master key and stores nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenora_bench.api.load import Target
from tenora_bench.api.measure import System
from tenora_bench.api.stamps import Stamps
from tenora_bench.client import BenchError
from tenora_bench.peers.processes import clean_environment, family, running, wait_ready
from tenora_bench.server import free_port

KEY = "sk-bench"
DOES = "one master key; no virtual keys, limits, usage or adapters"


def install(folder: Path) -> Path:
    """The interpreter of an environment with `litellm[proxy]`, made once. Raises BenchError."""
    python = folder.absolute() / "bin" / "python"  # it is run from elsewhere
    if not (folder / "bin" / "litellm").exists():
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "-q", "litellm[proxy]"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise BenchError(f"LiteLLM cannot be installed: {done.stderr[-500:]}")
    return python


def installed_version(python: Path) -> str:
    asked = "from importlib.metadata import version; print(version('litellm'))"
    return subprocess.check_output([python, "-c", asked], text=True).strip()


@contextmanager
def litellm(
    python: Path, folder: Path, model: Path, stamps: Stamps, workers: int
) -> Iterator[System]:
    """Runs for as long as the block does."""
    folder.mkdir(parents=True, exist_ok=True)
    port, upstream_port = free_port(), free_port()
    config = folder / "config.yaml"  # JSON is YAML
    upstream = {"model": "openai/support", "api_base": f"http://127.0.0.1:{upstream_port}/v1"}
    config.write_text(
        json.dumps(
            {
                "model_list": [
                    {"model_name": "support", "litellm_params": {**upstream, "api_key": "none"}}
                ],
                "general_settings": {"master_key": KEY},
                "litellm_settings": {"num_retries": 0, "telemetry": False, "set_verbose": False},
            }
        )
    )
    command = [str(python.with_name("litellm")), "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", str(workers), "--telemetry", "False"]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    environment = clean_environment(1, quiet)
    behind = [sys.executable, "-m", "tenora_bench.api.upstream", str(upstream_port), str(model)]
    paths = {"PYTHONPATH": ":".join(sys.path)}
    upstream_log, log = folder / "upstream.log", folder / "litellm.log"
    with (
        running(behind, upstream_log, {**environment, **paths}) as first,
        running(command, log, environment) as process,
    ):
        wait_ready(first, f"http://127.0.0.1:{upstream_port}/", upstream_log, timeout_s=60)
        wait_ready(process, f"http://127.0.0.1:{port}/health/liveliness", log, timeout_s=180)
        target = Target(port, (KEY,), "support")
        yield System(f"litellm-{workers}", target, tuple(family(process.pid)), stamps)
