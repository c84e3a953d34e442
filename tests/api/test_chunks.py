"""Chunks written from templates are, parsed, those made whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.events import TokenLogprob
from tenora_platform.inference import chat
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.schemas import ChatCompletionRequest
from tenora_platform.inference.session import InferenceSession

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"', "\\", "\n\n", "data: [DONE]\n\n", "\u2028", "\x00", "\x7f", "%d %b", "</script>", "🙂"]
)


@dataclass
class Said:
    """What of an InferenceSession a chunk names."""

    id: str
    created: int
    tier: str
    fingerprint: str = "tenora-fake"
    counted: int = 0
    state: Any = field(
        default_factory=lambda: SimpleNamespace(
            engine=SimpleNamespace(
                model=SimpleNamespace(eos_token_ids=[]),
                text=SimpleNamespace(
                    token_text=lambda token: f"t{token}", token_bytes=lambda token: bytes([token])
                ),
            )
        )
    )

    def usage_so_far(self) -> dict[str, int]:
        return {"prompt_tokens": 3, "completion_tokens": self.counted, "total_tokens": 9}

    def chunk(self, *args: Any) -> dict[str, Any]:
        return InferenceSession.chunk(cast(InferenceSession, self), *args)


def parsed(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2  # or a client would see two events
    return json.loads(event[6:])


@given(
    name=TEXTS.filter(bool).map(lambda text: text[:200]),
    tiers=st.lists(st.sampled_from(["default", "flex"]), min_size=1, max_size=4),
    texts=st.lists(TEXTS, min_size=4, max_size=4),
    index=st.integers(0, 127),
    options=st.sampled_from(
        [None, {}, {"include_usage": True}]
        + [{"include_usage": usage, "continuous_usage_stats": True} for usage in (False, True)]
    ),
    logprobs=st.booleans(),
    ids=st.booleans(),
    reason=st.sampled_from([None, "stop", "length"]),
)
def test_templates_say_what_dicts_do(
    name: str,
    tiers: list[str],
    texts: list[str],
    index: int,
    options: dict[str, bool] | None,
    logprobs: bool,
    ids: bool,
    reason: Any,
) -> None:
    body = ChatCompletionRequest.model_validate(
        {
            "model": name,
            "messages": [{"role": "user", "content": "?"}],
            "stream": True,
            "stream_options": options,
            "logprobs": logprobs,
            "return_token_ids": ids,
        }
    )
    said = Said("chatcmpl-1", 1_700_000_000, tiers[0])
    session = cast(InferenceSession, said)
    chunks = Chunks(session, "chat.completion.chunk", body)
    for count, (tier, text) in enumerate(zip(tiers, texts, strict=False)):
        said.tier, said.counted = tier, count
        tokens = (TokenLogprob(65, -0.5, [(66, -1.0)]),) if logprobs else ()
        piece = Piece(index, text, (7, 8), tokens, reason)
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": text} if text else {},
            "logprobs": json.loads(chat._piece(session, body, piece))["logprobs"],
            "finish_reason": reason,
        }
        if reason is not None:
            choice |= {"matched_stop": None, "stop_reason": None}
        if text == "" and reason is None and not logprobs and not ids:
            choice["delta"] = {"content": ""}  # a piece says something; if not, this is no harm
        if ids:
            choice["token_ids"] = [7, 8]
        assert (choice["logprobs"] is not None) == logprobs
        whole = said.chunk("chat.completion.chunk", body, [choice])
        templated = parsed(chunks.of(chat._piece(session, body, piece)))
        assert templated == json.loads(encode(whole))
        assert list(templated) == list(whole)  # in the same order, too
        assert parsed(chunks.rare([], usage=1)) == {
            **said.chunk("chat.completion.chunk", body, []),
            "usage": 1,
        }
