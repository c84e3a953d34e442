"""Asks one item of one subject, as any request of inference is asked: within limits and budget,
metered and billed. Knows what an item means; keeps nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial

from tenora_engine.config import ModelInfo
from tenora_engine.errors import ContextLengthError
from tenora_engine.events import TokenLogprob
from tenora_engine.request import SamplingParams
from tenora_engine.text.chat_template import Renders
from tenora_platform.auth import TenantContext
from tenora_platform.errors import BadRequestError
from tenora_platform.evaluations.payers import lowest_class
from tenora_platform.evaluations.schemas import Item, Subject
from tenora_platform.evaluations.scoring import Scoring
from tenora_platform.ids import new_ulid
from tenora_platform.inference.parameters import Generation
from tenora_platform.inference.session import InferenceSession, Prompt
from tenora_platform.registry.resolver import ResolvedAdapter, ResolvedModel
from tenora_platform.state import AppState

KIND = "eval"
"""Of its requests' ids, so that receipts, searches and usage tell them from others."""

EXPECTED_TOKENS_MAX = 64
"""Of a continuation whose likelihood is asked for: each is a request of its own."""


@dataclass
class Answered:
    """What came of one item so far; `request_ids` and tokens are of all requests that it took, as
    `place` and `total` are of a loglikelihood."""

    answer: str | None = None
    score: float | None = None
    place: int = 0
    total: float = 0.0
    request_ids: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0


def model_of(state: AppState, adapter: str, subject: Subject, *, is_owners: bool) -> ResolvedModel:
    """What a request runs on. In the platform's name an adapter is known by its digest alone: whose
    it is, is not for another tenant's usage to say."""
    base = state.engine.model.id
    if subject.version_id is None:
        return ResolvedModel(base, None)
    resolved = ResolvedAdapter(
        version_id=subject.version_id if is_owners else "",
        name=adapter,
        version=subject.number,
        digest=subject.digest,
        rank=subject.rank,
        adapter_id=subject.adapter_id if is_owners else "",
    )
    return ResolvedModel(f"{adapter}@{subject.number}" if is_owners else base, resolved)


@dataclass
class ItemAsker:
    """Asks in the name of `tenant`. `answered` has what is known so far, also when `ask` raises:
    ApiErrors and EngineErrors, as requests do."""

    state: AppState
    tenant: TenantContext
    model: ResolvedModel
    template: Renders | None = None  # the version's own, for conversations
    answered: Answered = field(default_factory=Answered)

    async def ask(self, scoring: Scoring, item: Item, max_tokens: int) -> None:
        ids = await self._prompt_ids(item)
        if scoring == "loglikelihood":
            await self._loglikelihood(ids, item.expected or "")
            return
        answer, _ = await self._one(ids, _greedy(ids, max_tokens, self.state.engine.model))
        self.answered.answer = answer
        given = item.model_dump(by_alias=True, exclude_none=True)
        self.answered.score = await self.state.scorer.score(
            self.tenant.tenant_id, scoring, given, answer
        )

    async def _prompt_ids(self, item: Item) -> list[int]:
        text, control = self.state.engine.text, self.state.settings.allow_control_tokens
        if item.messages is None:
            return text.encode(item.prompt or "", control_tokens=control)
        said = [message.model_dump() for message in item.messages]
        encode = partial(
            text.encode_chat,
            said,
            control_tokens=control,
            template=self.template,
            characters_most=text.characters_max(self.state.engine.model.context_tokens),
        )
        if self.template is None:
            return encode()
        return await self.state.templates.run(self.tenant.tenant_id, encode)

    async def _loglikelihood(self, ids: list[int], expected: str) -> None:
        """The sum of the expected tokens' log probabilities (natural), each behind those before it:
        one request a token, which may say that token alone, and whose log probability is the
        model's own all the same. What is before it is cached."""
        text, model, so_far = self.state.engine.text, self.state.engine.model, self.answered
        wanted = text.encode(expected, add_special_tokens=False)
        if len(wanted) > EXPECTED_TOKENS_MAX:
            raise BadRequestError(
                f"expected has {len(wanted)} tokens; loglikelihood scores at most "
                f"{EXPECTED_TOKENS_MAX}. Shorten it.",
                code="expected_too_long",
            )
        while so_far.place < len(wanted):
            before, token = ids + wanted[: so_far.place], wanted[so_far.place]
            sampling = SamplingParams(
                temperature=0.0,
                max_tokens=_fitting(before, 1, model),
                allowed_token_ids=(token,),
                ignore_eos=True,
                logprobs=0,
            )
            _, [said] = await self._one(before, Generation(sampling, (), False, False))
            assert said.token_id == token  # no other was allowed
            so_far.total += said.logprob
            so_far.place += 1
        so_far.score = so_far.total

    async def _one(self, ids: list[int], generation: Generation) -> tuple[str, list[TokenLogprob]]:
        """One request: its text and log probabilities."""
        admission = await self.state.limits.admit(self.tenant)
        await self.state.budgets.admit(self.tenant)
        session = InferenceSession(
            state=self.state,
            tenant=self.tenant,
            resolved=self.model,
            prompts=[Prompt(ids, generation)],
            tier=lowest_class(self.tenant),
            open_ended=False,
            kind=KIND,
            x_request_id="",
            ulid=new_ulid(),
            admission=admission,
        )
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        try:
            async with contextlib.aclosing(session.pieces()) as pieces:
                async for piece in pieces:
                    texts.append(piece.text)
                    logprobs += piece.logprobs
        finally:
            usage = session.usage()
            if usage.total_tokens:
                self.answered.request_ids.append(session.id)
                self.answered.prompt_tokens += usage.prompt_tokens
                self.answered.output_tokens += usage.completion_tokens
        return "".join(texts), logprobs


def _greedy(ids: list[int], max_tokens: int, model: ModelInfo) -> Generation:
    most = _fitting(ids, max_tokens, model)
    return Generation(SamplingParams(temperature=0.0, max_tokens=most), (), False, True)


def _fitting(ids: list[int], max_tokens: int, model: ModelInfo) -> int:
    """Raises ContextLengthError where not even one token fits behind the prompt."""
    room = model.context_tokens - len(ids)
    if room < 1:
        raise ContextLengthError.of(
            model.context_tokens, len(ids), max_tokens, "prompt", param="prompt"
        )
    return min(max_tokens, room)
