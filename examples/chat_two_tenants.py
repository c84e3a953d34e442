"""Two tenants ask their own adapter `support` at the same moment, through the official `openai`
client, and both answers stream in. Knows Tenora only by its URL and two tenant keys."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass

from openai import APIConnectionError, APIStatusError, AsyncOpenAI

DEFAULT_URL = "http://127.0.0.1:8000/v1"
DEFAULT_QUESTION = "How long is the warranty?"


@dataclass(frozen=True)
class Tenant:
    """Who asks: a label for the screen, the tenant's key, the adapter to ask."""

    label: str
    key: str
    model: str


async def ask(tenant: Tenant, url: str, question: str) -> str:
    """Stream one answer at temperature 0, printing each piece as it comes; returns the whole."""
    pieces: list[str] = []
    async with AsyncOpenAI(api_key=tenant.key, base_url=url) as client:
        stream = await client.chat.completions.create(
            model=tenant.model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=64,
            stream=True,
        )
        async for chunk in stream:
            piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            if piece:
                pieces.append(piece)
                print(f"[{tenant.label}] {piece!r}", flush=True)
    return "".join(pieces)


async def ask_both(tenants: list[Tenant], url: str, question: str) -> None:
    print(f"both tenants ask: {question}\n")
    answers = await asyncio.gather(*(ask(tenant, url, question) for tenant in tenants))
    print()
    for tenant, text in zip(tenants, answers, strict=True):
        print(f"{tenant.label} / {tenant.model}: {text}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Stream from two tenants' adapters at once. `make up` prints URL and keys."
    )
    parser.add_argument("--url", default=os.environ.get("TENORA_URL", DEFAULT_URL))
    parser.add_argument("--acme-key", default=os.environ.get("ACME"))
    parser.add_argument("--globex-key", default=os.environ.get("GLOBEX"))
    parser.add_argument("--acme-model", default="support")
    parser.add_argument("--globex-model", default="support")
    parser.add_argument("question", nargs="?", default=DEFAULT_QUESTION)
    arguments = parser.parse_args()
    if not arguments.acme_key or not arguments.globex_key:
        parser.error("give --acme-key and --globex-key, or set ACME and GLOBEX")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    tenants = [
        Tenant("acme", arguments.acme_key, arguments.acme_model),
        Tenant("globex", arguments.globex_key, arguments.globex_model),
    ]
    try:
        asyncio.run(ask_both(tenants, arguments.url, arguments.question))
    except APIConnectionError as error:
        print(f"no server at {arguments.url} ({error}); start one with `make up`", file=sys.stderr)
        return 1
    except APIStatusError as error:
        print(f"the server refused ({error.status_code}): {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
