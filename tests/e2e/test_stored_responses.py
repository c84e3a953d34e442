"""Conversations over stored responses with the real model, at two API processes, to the official
client: what they ask is what the same conversation sent whole asks."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from running_platform import Running

PLAN = "e2e-storing"


@pytest.fixture(scope="module")
def key(running: Running) -> str:
    plan = running.admin("PUT", f"/admin/v1/plans/{PLAN}", json={"stored_responses": True})
    assert plan.status_code == 200, plan.text
    body = {"name": "storing", "plan": PLAN}
    tenant = running.admin("POST", "/admin/v1/tenants", json=body).json()["id"]
    made = running.admin("POST", f"/admin/v1/tenants/{tenant}/api_keys", json={"name": "e2e"})
    new = str(made.json()["key"])
    chosen = running.call(new, "PATCH", "/v1/settings", json={"stored_response_days": 1})
    assert chosen.status_code == 200, chosen.text
    return new


def fresh(running: Running, key: str) -> openai.OpenAI:
    """A connection of its own, which either process may accept."""
    return openai.OpenAI(
        base_url=running.api,
        api_key=key,
        max_retries=0,
        default_headers={"connection": "close"},
    )


@pytest.mark.parametrize("stream", [False, True])
def test_three_turns_are_one_conversation(running: Running, key: str, stream: bool) -> None:
    asked: dict[str, Any] = {"model": running.base_model, "temperature": 0, "max_output_tokens": 12}

    def ask(**more: Any) -> Any:
        with fresh(running, key) as client:
            if not stream:
                return client.responses.create(**asked, **more)
            *_, last = client.responses.create(**asked, **more, stream=True)
            return last.response

    history: list[Any] = []
    previous: str | None = None
    for text in ("Name a river.", "And a longer one?", "Where does it end?"):
        turn = ask(input=text, previous_response_id=previous)
        history.append({"role": "user", "content": text})
        whole = ask(input=history, store=False)
        assert turn.usage.input_tokens == whole.usage.input_tokens
        assert turn.output_text == whole.output_text
        assert (turn.store, whole.store) == (True, False)
        history += [item.model_dump() for item in turn.output]
        previous = turn.id
        for _ in range(8):  # by either process
            with fresh(running, key) as client:
                found = client.responses.retrieve(turn.id)
                assert (found.output_text, found.usage) == (turn.output_text, turn.usage)
    with fresh(running, key) as client:
        client.responses.delete(str(previous))
    for _ in range(8):
        answer = httpx.get(
            f"{running.api}/responses/{previous}", headers={"authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 404
