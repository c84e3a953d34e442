"""Where in the text a token begins, and what a token is called, in the logprobs of
`/v1/completions`: the same streamed as whole, whatever the tokens cut in two."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from api_harness import Api
from fake_engine import write_byte_tokenizer
from tenora_engine.events import FinishEvent, SequenceEvent, TokenEvent, TokenLogprob
from tenora_engine.request import GenerationRequest, SamplingParams, Tenant
from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_engine.text.processor import TextProcessor
from tenora_platform.inference.generation import Piece, Run
from tenora_platform.inference.logprobs import TextScores
from tenora_platform.inference.parameters import Generation
from usage_records import usage_record

BYTES = st.lists(
    st.sampled_from(["a", "bc", "é", "水", "👩‍🚀", "🙂", " ", "STOP", "ST"]).map(str.encode)
    | st.binary(min_size=1, max_size=2),
    max_size=12,
).map(b"".join)
"""Text of all widths, with bytes among it that are none, and perhaps an unfinished end."""


class Answer:
    """An engine client whose token ids are places in a list of bytes; each has its logprob."""

    def __init__(self, tokens: Sequence[bytes], cuts: Sequence[int]) -> None:
        self._tokens, self._cuts = tokens, sorted({0, len(tokens), *cuts})

    @property
    def text(self) -> Any:
        return SimpleNamespace(
            detokenizer=lambda stop, include_stop, skip_special, min_tokens, shown, offsets, **_: (
                IncrementalDetokenizer(
                    self._tokens.__getitem__, stop, include_stop, min_tokens, offsets
                )
            )
        )

    async def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        for begin, end in pairwise(self._cuts):
            ids = list(range(begin, end))
            yield TokenEvent(request.request_id, 0, ids, [TokenLogprob(n, -1.0, []) for n in ids])
        usage = usage_record("r:0", "t", tier=request.tenant.tier)
        yield FinishEvent(request.request_id, 0, "length", usage)

    async def abort(self, *args: Any, **more: Any) -> None: ...


def cut(data: bytes, seed: int) -> list[bytes]:
    """Into tokens; some stand for nothing, as special ones do."""
    draw, tokens = random.Random(seed), []
    while data:
        size = draw.choice([0, 1, 1, 2, 3, 5])
        tokens.append(data[:size])
        data = data[size:]
    return tokens


def pieces_of(
    tokens: list[bytes], cuts: list[int], stop: tuple[str, ...], chunk_tokens: int
) -> list[Piece]:
    sampling = SamplingParams(max_tokens=100, logprobs=0)
    asked = Generation(sampling, stop, False, True, offsets=True)
    request = GenerationRequest(
        request_id="r",
        tenant=Tenant(key="t", namespace="t"),
        prompt_token_ids=[0],
        sampling=sampling,
    )
    client = cast(Any, Answer(tokens, cuts))

    async def collect() -> list[Piece]:
        run = Run(client, request, asked, chunk_tokens=chunk_tokens)
        return [piece async for piece in run.pieces()]

    return asyncio.run(collect())


def characters(data: bytes) -> list[int]:
    """For each byte, which of the decoded characters it is of."""
    found: list[int] = []
    at = number = 0
    while at < len(data):
        try:
            width = len(data[at:].decode()[0].encode())
        except UnicodeDecodeError as error:
            first = data[at : at + error.start].decode()[:1]
            width = len(first.encode()) if first else error.end
        found += [number] * width
        at, number = at + width, number + 1
    return found


@given(data=BYTES, seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 30)), chunk=st.data())
@settings(max_examples=300, deadline=None)
def test_a_token_is_where_its_character_stands(
    data: bytes, seed: int, cuts: list[int], chunk: st.DataObject
) -> None:
    tokens = cut(data, seed)
    cuts = [each for each in cuts if each < len(tokens)]
    said = pieces_of(tokens, cuts, (), chunk.draw(st.integers(0, 4)))
    offsets = [offset for piece in said for offset in piece.offsets]
    assert "".join(piece.text for piece in said) == data.decode(errors="replace")
    assert len(offsets) == len(tokens)
    places, first = characters(data), 0
    for token, offset, end in zip(tokens, offsets, accumulate(map(len, tokens)), strict=True):
        if token:
            assert offset == places[first]
        first = end
    assert offsets == sorted(offsets)


@given(data=BYTES, seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 30)), chunk=st.data())
@settings(max_examples=300, deadline=None)
def test_streamed_offsets_are_those_of_the_whole_answer(
    data: bytes, seed: int, cuts: list[int], chunk: st.DataObject
) -> None:
    """Also of what a stop string takes away, which is told where the text ends."""
    tokens = cut(data, seed)
    cuts = [each for each in cuts if each < len(tokens)]
    stop = chunk.draw(st.sampled_from([(), ("STOP",), ("水a", "TOP")]))
    [*_, whole] = pieces_of(tokens, [], stop, 1000)
    said = pieces_of(tokens, cuts, stop, chunk.draw(st.integers(0, 4)))
    text = ""
    offsets: list[int] = []
    ids: list[int] = []
    for piece in said:
        text += piece.text
        offsets += piece.offsets
        ids += piece.token_ids
        assert len(piece.offsets) == len(piece.logprobs)
        assert all(offset <= len(text) for offset in piece.offsets)
    reference = pieces_of(tokens, [], stop, 1000)
    assert text == "".join(piece.text for piece in reference)
    assert offsets == [offset for piece in reference for offset in piece.offsets]
    assert ids == [token for piece in reference for token in piece.token_ids]
    assert whole.finish_reason == said[-1].finish_reason


def scored(text: TextProcessor, token: TokenLogprob) -> Any:
    scores = TextScores(text)
    scores.add([token])
    return json.loads(bytes(scores.json()))


def test_labels_tell_tokens_apart(tmp_path: Path) -> None:
    """Parts of characters are written as OpenAI does; what is left alike is called by its id."""
    write_byte_tokenizer(tmp_path)
    text = TextProcessor(tmp_path)
    parts = text.encode("水火")
    assert [text.token_label(token) for token in parts[:3]] == [
        r"bytes:\xe6",
        r"bytes:\xb0",
        r"bytes:\xb4",
    ]
    top = [(token, -1.0 - place) for place, token in enumerate({*parts})]
    beyond = [(5000, -20.0), (5001, -21.0)]  # a model's logits may be wider than its vocabulary
    made = scored(text, TokenLogprob(5001, -21.0, [*top, *beyond]))
    [row] = made["top_logprobs"]
    assert row is not None
    assert len(row) == len(top) + 2
    first, *_, last = row
    assert (first, last) == ("token_id:5001", ""), "the token itself is the first"
    assert made["tokens"] == ["token_id:5001"]


def test_a_label_is_not_that_of_other_bytes(tmp_path: Path) -> None:
    vocab = {token: place for place, token in enumerate(["<0xE6>", "<0x5C>", "\\", "a", "▁a"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = TextProcessor(tmp_path)
    made = scored(text, TokenLogprob(2, -3.0, [(1, -1.0), (0, -2.0)]))
    assert made["top_logprobs"] == [{"\\": -1.0, r"bytes:\xe6": -2.0, "token_id:2": -3.0}]
    assert made["tokens"] == ["token_id:2"], "its key, or a harness would take it for the likeliest"


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [False, True])
async def test_completions_say_so(api: Api, special: bool, echo: bool, stream: bool) -> None:
    tenant = await api.new_tenant(f"offsets {special} {echo} {stream}", plan="premium")
    api.engine.answer = lambda request, index: "é水!🙂"
    prompt = api.engine.text.encode("水<|im_end|>é")[:-1]  # its last character is not whole
    body = {"model": "fake-base", "prompt": prompt, "max_tokens": 9, "logprobs": 1, "echo": echo}
    more = {"stream": stream, "seed": 1, "skip_special_tokens": not special}
    said = await api.call(tenant.key, "POST", "/v1/completions", json={**body, **more})
    choices = streamed(said.text) if stream else said.json()["choices"]
    text = "".join(choice["text"] for choice in choices)
    rows = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    offsets = [offset for row in rows for offset in row["text_offset"]]
    tokens = [token for row in rows for token in row["tokens"]]
    shown = "水<|im_end|>\ufffd" if special else "水\ufffd"
    of_prompt = [0, 0, 0, 1, len(shown) - 1] if echo else []
    behind = len(shown) if echo else 0
    assert text == (shown if echo else "") + "é水!\ufffd"
    assert offsets == of_prompt + [behind + each for each in (0, 0, 1, 1, 1, 2, 3, 3, 3)]
    assert tokens[-9:-6] == [r"bytes:\xc3", r"bytes:\xa9", r"bytes:\xe6"]
    assert all(len(top) == 1 for row in rows for top in row["top_logprobs"] if top)


def streamed(body: str) -> list[Any]:
    events = [line[6:] for line in body.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in json.loads(event)["choices"]]


async def test_tokenize_spells_tokens_as_the_vocabulary_does(api: Api) -> None:
    tenant = await api.new_tenant("token strings", plan="premium")
    body = {"model": "fake-base", "prompt": "a水", "return_token_strs": True}
    made = (await api.call(tenant.key, "POST", "/v1/tokenize", json=body)).json()
    assert made["token_strs"] == ["a", "æ", "°", "´"]
