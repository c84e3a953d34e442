"""Usage records as the engine makes them, with every field open to a test."""

from __future__ import annotations

from typing import Any

from tenora_engine.events import UsageRecord


def usage_record(event_id: str, tenant_id: str, **changes: Any) -> UsageRecord:
    """A finished base-model sequence; `event_id` reads "<request id>:<index>"."""
    request_id, _, index = event_id.rpartition(":")
    values: dict[str, Any] = {
        "event_id": event_id,
        "request_id": request_id,
        "index": int(index),
        "tenant": tenant_id,
        "adapter_digest": None,
        "context": {
            "tenant_id": tenant_id,
            "api_key_id": "key_1",
            "adapter_version_id": "",
            "model": "fake-base",
            "plan": "standard",
        },
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "arrival_s": 1_900_000_000.0,
        "first_token_s": 1_900_000_000.5,
        "finished_s": 1_900_000_001.0,
        "queue_ms": 0.0,
        "adapter_load_ms": 0.0,
        "residency": None,
        "tier": "default",
        "finish_reason": "stop",
    }
    return UsageRecord(**(values | changes))
