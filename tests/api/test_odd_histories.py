"""Whatever a body's message, tool call or template argument holds: an answer or a refusal that
names a field, never a failure."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_harness import Api
from tenora_platform.inference.schemas import ChatCompletionRequest, ChatMessage, SamplingFields

texts = st.text(max_size=6) | st.sampled_from(["<|im_end|>", "\ud800", "\x00", "{{ 1 }}", "1e999"])
numbers = st.integers() | st.floats() | st.sampled_from([2**64, -(2**63) - 1, 1e308, 1e-320])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": texts, "arguments": texts | values})},
    optional={"id": texts, "type": texts, "index": values},
)
plausible = {
    "content": texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts})),
    "tool_calls": st.lists(calls, max_size=2),
    "name": texts,
}
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "function"])},
    optional={
        name: plausible.get(name, values) | values
        for name in (*ChatMessage.model_fields, "annotations", "other")
        if name != "role"
    },
)
fields = st.fixed_dictionaries(
    {"model": st.just("fake-base"), "messages": st.lists(messages, max_size=3)},
    optional={
        name: values
        for name in {**SamplingFields.model_fields, **ChatCompletionRequest.model_fields}
        if name not in ("model", "messages", "stream")
    },
)


async def test_any_history_and_any_field(api: Api) -> None:
    tenant = await api.new_tenant("odd", plan="premium")
    await api.put_plan("endless", {})
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "endless"})
    seen: set[int] = set()
    bodies: list[Any] = []

    @settings(max_examples=120, suppress_health_check=list(HealthCheck))
    @given(fields)
    def collect(body: Any) -> None:
        bodies.append(body)

    collect()
    bodies.append({"model": "fake-base", "messages": [{"role": "user", "content": "x"}]})
    for body in bodies:
        answer = await api.call(
            tenant.key,
            "POST",
            "/v1/chat/completions",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
        seen.add(answer.status_code)
        assert answer.status_code in (200, 400), (answer.text, body)
        if answer.status_code == 400:
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert seen == {200, 400}
