"""Asks the engine for a version and for the base model alike, and compares what they say. Knows the
engine's client and text; no tenant's plan, no database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tenora_engine.client import EngineClient
from tenora_engine.events import FinishEvent, TokenLogprob, UsageRecord
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_platform.ids import new_id
from tenora_platform.probing.divergence import Top, kl_at_least
from tenora_platform.probing.pace import Pace
from tenora_platform.probing.schemas import Sample

ANSWER_TOKENS = 48
POSITIONS = 8
TOP = 20  # the most that the engine tells
ANSWERED_WITHIN_S = 600.0  # it waits behind everybody else

KL_NOISE = 1e-2
"""Nats below which two distributions count as the same: bfloat16 rounds otherwise in other batches
and with other prompts cached. Measured on SmolLM2-135M in bfloat16 on a CPU, the highest of four
prompts: 0.0039 of an adapter of zeros, 0.013 of random weights that changed an answer."""


class ProbeError(Exception):
    """A version could not be asked; the message says why. It is asked again later."""


class SickError(ProbeError):
    """The version's logits are no numbers: to ask it again would not help."""


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    usage: UsageRecord


@dataclass
class Asker:
    """`context` goes into each usage record. Keeps the usage of what it was answered. `waits` is
    called while it rests, see `Pace.turn`."""

    engine: EngineClient
    tenant: Tenant
    context: Mapping[str, str]
    pace: Pace
    waits: Callable[[], Awaitable[object]] | None = None
    usage: list[UsageRecord] = field(default_factory=list)

    async def compare(self, prompt: str, token_ids: Sequence[int], version: AdapterRef) -> Sample:
        """Raises ProbeError (SickError), EngineError."""
        ids = list(token_ids)
        base = await self.answer(ids, None, ANSWER_TOKENS)
        other = await self.answer(ids, version, ANSWER_TOKENS)
        # The end counts as a token, and what would come behind it says nothing.
        positions = min(len(base.token_ids) + 1, POSITIONS)
        path = await self._first(ids, None, base, positions)
        own = await self._first(ids, version, other, positions)
        kl = [
            kl_at_least(_top(said), _top(await self._theirs(ids, path, own, place, version)))
            for place, said in enumerate(path.logprobs)
        ]
        return Sample(
            prompt=prompt,
            base_answer=self._text(base),
            answer=self._text(other),
            kl=[round(each, 6) for each in kl],
        )

    async def _first(
        self, ids: list[int], adapter: AdapterRef | None, known: Answer, count: int
    ) -> Answer:
        """The first `count` tokens, the end among them where there are fewer."""
        if len(known.token_ids) < count:
            known = await self.answer(ids, adapter, count, past_the_end=True)
        return Answer(known.token_ids[:count], known.logprobs[:count], known.usage)

    async def _theirs(
        self, ids: list[int], path: Answer, own: Answer, place: int, version: AdapterRef
    ) -> TokenLogprob:
        """What the version says at a place of the base's path: as long as it goes the same way it
        has been asked already."""
        if own.token_ids[:place] == path.token_ids[:place]:
            return own.logprobs[place]
        before = ids + path.token_ids[:place]
        return (await self.answer(before, version, 1, past_the_end=True)).logprobs[0]

    async def answer(
        self,
        token_ids: list[int],
        adapter: AdapterRef | None,
        max_tokens: int,
        *,
        past_the_end: bool = False,
    ) -> Answer:
        """Greedy, with the likeliest tokens at each place."""
        request = GenerationRequest(
            request_id=new_id("probe"),
            tenant=self.tenant,
            prompt_token_ids=token_ids,
            sampling=SamplingParams(
                temperature=0.0, max_tokens=max_tokens, logprobs=TOP, ignore_eos=past_the_end
            ),
            adapter=adapter,
            context={**self.context},
        )
        await self.pace.turn(self.waits)
        usage = None
        try:
            answer = await self._collected(request)
            usage = answer.usage
        finally:
            await self.pace.spent(usage)
        self.usage.append(usage)
        return answer

    async def _collected(self, request: GenerationRequest) -> Answer:
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        events = self.engine.submit(request)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                async for event in events:
                    if isinstance(event, FinishEvent):
                        if event.fault == "weights" and request.adapter is not None:
                            raise SickError(event.error or "")
                        if event.reason not in ("stop", "length"):
                            raise ProbeError(event.error or "the engine ended the request")
                        return Answer(tokens, logprobs, event.usage)
                    tokens += event.token_ids
                    logprobs += event.logprobs or []
        except TimeoutError as error:
            raise ProbeError(f"no answer within {ANSWERED_WITHIN_S:.0f} s") from error
        finally:
            if isinstance(events, AsyncGenerator):
                with contextlib.suppress(RuntimeError):
                    await events.aclose()
        raise ProbeError("the engine ended without finishing the answer")

    def _text(self, answer: Answer) -> str:
        return self.engine.text.decode(answer.token_ids)


def _top(token: TokenLogprob) -> Top:
    """The likeliest alone: the chosen one is among them."""
    return dict(token.top) or {token.token_id: token.logprob}
