"""An API process whose wall clock is wrong, beside an engine whose clock is right."""

from __future__ import annotations

import time

import pytest

from api_harness import Api


@pytest.mark.parametrize("skew_s", [-3600.0, -1.0, 1.0, 3600.0])
async def test_no_engine_hears_of_a_wrong_clock(
    api: Api, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    """What a request has waited is all that it is told, and that is measured here."""
    tenant = await api.new_tenant(f"skewed{skew_s:.0f}".replace("-", "m"))
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + skew_s)
    body = {
        "model": api.engine.model.id,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
    }
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert 0 <= api.engine.requests[-1].waited_s < 60
