"""An adapter is deleted while it answers: what runs finishes, what comes is 404, and the engine
holds nothing of it afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from running_platform import Running, make_tenant
from tenora_bench.adapters import AdapterSpec, write_adapter

TOKENS = 60


async def test_deleted_while_it_answers(running: Running, tmp_path: Path) -> None:
    folder = tmp_path / "fleeting"
    write_adapter(folder, running.model_dir, AdapterSpec("fleeting", 4, 99))
    owner = await make_tenant(running.server, "fleeting", {"fleeting": folder})
    async with openai.AsyncOpenAI(base_url=running.api, api_key=owner.key, max_retries=0) as api:
        whole = await api.completions.create(
            model="fleeting", prompt="Once " * 40, max_tokens=TOKENS, temperature=0,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        digest = running.call(owner.key, "GET", "/v1/adapters/fleeting").json()["digest"]
        assert holds(running, owner.id, digest) == (True, True), "memory and cached KV"

        stream = await api.completions.create(
            model="fleeting", prompt="Once " * 40, max_tokens=TOKENS, temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        text = ""
        async for chunk in stream:
            if not text:
                deleted = await asyncio.to_thread(
                    running.call, owner.key, "DELETE", "/v1/adapters/fleeting"
                )
                assert deleted.json()["deleted"] is True
                for model in ("fleeting", "fleeting@1"):
                    with pytest.raises(openai.NotFoundError):
                        await api.completions.create(model=model, prompt="x", max_tokens=1)
            text += chunk.choices[0].text if chunk.choices else ""
        assert text == whole.choices[0].text, "what ran was not disturbed"
        async with asyncio.timeout(30):
            while holds(running, owner.id, digest) != (False, False):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def holds(running: Running, tenant_id: str, digest: str) -> tuple[bool, bool]:
    """Whether the engine has the adapter anywhere, and KV of the tenant."""
    engine = running.admin("GET", "/admin/v1/engine").json()
    adapters = {
        adapter["digest"] for replica in engine["replicas"] for adapter in replica["adapters"]
    }
    tenants = {
        pages["tenant_id"] for replica in engine["replicas"] for pages in replica["pool"]["tenants"]
    }
    return digest in adapters, tenant_id in tenants
