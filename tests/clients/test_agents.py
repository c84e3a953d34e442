"""The body of Codex CLI, and the commands of curl as the README prints them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from agent_bodies import codex_body
from client_checks import Tenora

README = Path(__file__).parents[2] / "README.md"


def test_the_body_of_codex(tenora: Tenora) -> None:
    headers = {"authorization": f"Bearer {tenora.key}", "originator": "codex_cli_rs"}
    body = codex_body(tenora.model, max_output_tokens=32)
    answer = httpx.post(f"{tenora.url}/responses", headers=headers, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert "response.completed" in answer.text or "response.incomplete" in answer.text
    assert "web_search" in answer.headers["x-tenora-warning"]


@pytest.mark.parametrize("says_json", [True, False])
def test_curl_as_documented(tenora: Tenora, says_json: bool) -> None:
    """Also without a content-type, which curl's -d does not set to JSON."""
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    printed = r"^curl -s http://127\.0\.0\.1:8000/v1/chat/completions.*?'\n"
    found = re.search(printed, README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    command = found.group(0).replace("http://127.0.0.1:8000/v1", tenora.url)
    if not says_json:
        command = command.replace(" -H 'content-type: application/json'", "")
    environment = {**os.environ, "ACME": tenora.key}
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(ended.stdout)["choices"], ended.stdout
