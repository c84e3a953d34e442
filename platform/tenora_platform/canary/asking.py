"""What the canary asks, through the API as any client does, and where its adapter is before. It
judges nothing but that there was an answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Literal, get_args

import httpx
import structlog

from tenora_engine.client import EngineClient
from tenora_platform.canary.tenants import CanaryError, CanaryTenant

Path = Literal["base", "store", "device", "host"]
PATHS: tuple[Path, ...] = get_args(Path)
"""In the order in which they are taken: what was fetched from the store is on the device next."""

MAX_TOKENS = 12
_PROMPT = "Say in one sentence what a canary is for in a mine."
_MOVED_WITHIN_S = 10.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered request."""

    request_id: str
    x_request_id: str
    residency: str | None  # as the answer's header says
    text: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


async def ask(http: httpx.AsyncClient, tenant: CanaryTenant, model: str) -> Answer:
    """A greedy request. Raises CanaryError with the refusal, httpx.HTTPError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": _PROMPT}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    answer = await http.post("/v1/chat/completions", headers=auth_of(tenant), json=body)
    if answer.status_code != 200:
        raise CanaryError(f"{answer.status_code}: {answer.text[:300]}")
    found = answer.json()
    usage = found["usage"]
    return Answer(
        request_id=found["id"],
        x_request_id=answer.headers["x-request-id"],
        residency=answer.headers.get("x-tenora-residency"),
        text=found["choices"][0]["message"]["content"],
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        output_tokens=usage["completion_tokens"],
    )


def auth_of(tenant: CanaryTenant) -> dict[str, str]:
    return {"authorization": f"Bearer {tenant.key}"}


async def lead_to(engine: EngineClient, tenant: CanaryTenant, path: Path) -> None:
    """Have the tenant's adapter where the path begins, if it comes to that soon. Its cached KV goes
    with it."""
    if path in ("base", "device"):
        return
    digest = tenant.adapter.digest
    await engine.forget_adapter(tenant.namespace, digest, device_only=path == "host")
    until_s = time.monotonic() + _MOVED_WITHIN_S
    while (there := await engine.residency(tenant.adapter)) != path:
        if time.monotonic() > until_s:
            return
        _log.debug("the canary's adapter is moving", wanted=path, there=there)
        await asyncio.sleep(0.05)
