"""Each curl command of the README and the pages, run by a shell as it is printed, against a served
platform. `docs/money.md` is a story whose commands build on each other: tests/e2e follows it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adapter_files import adapter_form
from api_harness import ADMIN_KEY, Api
from served_api import served

ROOT = Path(__file__).resolve().parents[2]
FOLLOWED = ROOT / "docs/money.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = "127.0.0.1:8000"
_BLOCK = re.compile(r"^( *)```(?:sh|bash|console)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Those that begin with curl, each with all of its lines."""
    for indent, block in _BLOCK.findall(page.read_text()):
        lines = [line.removeprefix(indent) for line in block.splitlines()]
        while lines:
            command = lines.pop(0)
            while lines and not _is_whole(command):
                command += "\n" + lines.pop(0)
            if command.startswith("curl"):
                yield command


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quote is open
        return False
    return not command.endswith("\\")


PRINTED_COMMANDS = [
    (str(page.relative_to(ROOT)), command)
    for page in PAGES
    if page != FOLLOWED
    for command in commands(page)
]


@pytest.fixture(scope="module")
async def environment(api: Api) -> AsyncIterator[dict[str, str]]:
    """What the pages call by a variable, of a tenant with four versions of `support`."""
    tenant = await api.new_tenant("reader", plan="premium")
    for seed in range(4):
        files = adapter_form(api.engine.model, "support", seed=seed)
        made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        assert made.status_code == 202, made.text
        path = f"/v1/adapters/support/versions/{seed + 1}"
        async with asyncio.timeout(60):
            while (await api.call(tenant.key, "GET", path)).json()["state"] != "active":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    async with served(api) as base:
        url = base.removesuffix("/v1")
        yield {
            "TENORA": url,
            "ACME": tenant.key,
            "ADMIN": ADMIN_KEY,
            "TENANT": tenant.id,
            "LEAVING": (await api.new_tenant("leaving")).id,
            "LISTENING": url.removeprefix("http://"),
        }


@pytest.mark.parametrize(
    ("page", "command"),
    PRINTED_COMMANDS,
    ids=[f"{page}-{number}" for number, (page, _) in enumerate(PRINTED_COMMANDS)],
)
async def test_the_command_works_as_printed(
    environment: dict[str, str], page: str, command: str
) -> None:
    here = f'curl() {{ command curl --connect-to {PRINTED}:$LISTENING "$@"; }}\n'
    ran = await asyncio.create_subprocess_exec(
        *("bash", "-ec", here + command),
        env={**os.environ, **environment, "no_proxy": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    answer, errors = await asyncio.wait_for(ran.communicate(), 60)
    assert ran.returncode == 0, (page, command, errors)
    assert json.loads(answer).get("error") is None, (page, command, answer)


def test_the_commands_are_found() -> None:
    assert {"README.md", "docs/adapters.md", "docs/people.md", "docs/rollouts.md"} <= {
        page for page, _ in PRINTED_COMMANDS
    }
    for page in PAGES:  # none stands where this does not look
        printed = re.findall(r"^ *curl ", page.read_text(), re.MULTILINE)
        assert len(printed) == len(list(commands(page))), page
