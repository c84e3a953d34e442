"""/v1/chat/completions in OpenAI's shapes: a session's pieces made whole, or as a stream."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenora_engine.config import ModelInfo
from tenora_engine.errors import EngineError
from tenora_engine.text.chat_template import Renders
from tenora_engine.text.processor import TextProcessor
from tenora_engine.text.tool_formats import ToolFormat, format_of
from tenora_platform.errors import ApiError, BadRequestError
from tenora_platform.inference.beams import with_beams
from tenora_platform.inference.choice_reader import ChoiceReader, readers_of
from tenora_platform.inference.chunks import Chunks, encode
from tenora_platform.inference.echoes import chat_echo
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.logprobs import ChatScores, prompt_logprobs, refuse_too_many_scores
from tenora_platform.inference.messages import template_messages
from tenora_platform.inference.neutral_fields import refuse_unsupported
from tenora_platform.inference.parameters import Generation, bad_words, chat_generation, truncated
from tenora_platform.inference.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    FinishReasonText,
)
from tenora_platform.inference.session import InferenceSession, Prompt
from tenora_platform.inference.stops import stopped_by
from tenora_platform.inference.stream import DONE, sse
from tenora_platform.inference.tool_schemas import ToolCallMade
from tenora_platform.inference.tools import ToolUse, for_template, offered, tool_use
from tenora_platform.state import AppState


def chat_prompt(
    state: AppState, body: ChatCompletionRequest, template: Renders | None = None
) -> Prompt:
    """Tokens of the conversation, through the base model's chat template or this one. Raises
    BadRequestError, InvalidRequestError (the template refuses the messages)."""
    refuse_unsupported(body)
    text, model = state.engine.text, state.engine.model
    tools = tool_use(body, _form(state, template), text)
    all_ids = chat_tokens(state, body, template)
    token_ids = truncated(all_ids, body, model)
    echo = chat_echo(body, text, all_ids, token_ids) if _echoes(body) else ""
    refuse_too_many_scores([None, body.prompt_logprobs], len(token_ids))
    words = bad_words(body, text)
    generation = chat_generation(body, model, len(token_ids), words)
    generation = with_beams(body, _with_tools(generation, tools))
    return Prompt(token_ids, generation, _predicted(body, text, model), echo)


def _predicted(body: ChatCompletionRequest, text: TextProcessor, model: ModelInfo) -> list[int]:
    """Tokens of what the answer is thought to be, as far as an answer may be long."""
    if body.prediction is None:
        return []
    most = text.characters_max(model.context_tokens)
    token_ids = text.encode(body.prediction.text[:most], add_special_tokens=False)
    return token_ids[: model.context_tokens]


def _with_tools(generation: Generation, use: ToolUse | None) -> Generation:
    """Raises BadRequestError where the answer cannot be both, a call and something else."""
    if use is None:
        return generation
    sampling = generation.sampling
    grammar = use.grammar(sampling.grammar)
    sampling = msgspec.structs.replace(sampling, grammar=grammar)
    return dataclasses.replace(generation, sampling=sampling, tools=use)


def _form(state: AppState, template: Renders | None) -> ToolFormat:
    """In which the model calls tools. An adapter's own template is read, whatever was chosen."""
    if template is not None:
        return format_of(template.source)
    chosen = state.settings.tool_parser
    source = state.engine.text.chat_template_source or ""
    return format_of(source, None if chosen == "auto" else chosen)


def chat_tokens(
    state: AppState, body: ChatCompletionRequest, template: Renders | None = None
) -> list[int]:
    """All of the conversation, whether or not it fits. Raises as `chat_prompt` does."""
    text = state.engine.text
    return text.encode_chat(
        template_messages(body.messages),
        tools=for_template(offered(body)),
        add_generation_prompt=_opens_an_answer(body),
        continue_final_message=body.continue_final_message,
        control_tokens=state.settings.allow_control_tokens,
        template_arguments=body.chat_template_kwargs,
        template=template,
        characters_most=text.characters_max(state.engine.model.context_tokens),
    )


def _echoes(body: ChatCompletionRequest) -> bool:
    """Whether an answer begins with the message that it goes on with: `echo` asks for it."""
    return body.echo and not (_opens_an_answer(body) and body.messages[-1].role != "assistant")


def _opens_an_answer(body: ChatCompletionRequest) -> bool:
    if body.add_generation_prompt is None:
        return not body.continue_final_message
    if body.add_generation_prompt and body.continue_final_message:
        raise BadRequestError(
            "Either continue_final_message or add_generation_prompt can be true, not both.",
            param="continue_final_message",
            code="invalid_value",
        )
    return body.add_generation_prompt


@dataclass
class _Collected:
    """One choice of an answer that is not streamed."""

    reader: ChoiceReader
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCallMade] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: ChatScores | None = None  # where they were asked for
    last: Piece | None = None

    def add(self, piece: Piece) -> None:
        for said in self.reader.read(piece):
            if isinstance(said, str):
                self.texts.append(said)
            elif isinstance(said, ToolCallMade):
                self.calls.append(said)
            else:
                self.calls[-1].function.arguments += said.text
        self.token_ids += piece.token_ids
        if self.scores is not None:
            self.scores.add(piece.logprobs)
        self.last = piece


def _scores(session: InferenceSession, body: ChatCompletionRequest) -> ChatScores | None:
    if not body.logprobs:
        return None
    return ChatScores(
        session.state.engine.text,
        body.return_tokens_as_token_ids,
        with_itself=body.logprob_token_ids is not None,
    )


async def chat_whole(session: InferenceSession, body: ChatCompletionRequest) -> bytes:
    """The answer when nothing is streamed, as JSON; of a beam search, the best texts."""
    readers = readers_of(session)
    choices = [_Collected(reader, scores=_scores(session, body)) for reader in readers]
    async with contextlib.aclosing(session.pieces()) as pieces:
        async for piece in pieces:
            choices[piece.choice].add(piece)
    completion = ChatCompletion(
        id=session.id,
        created=session.created,
        model=body.model,
        choices=[
            _choice(session, body, index, choice) for index, choice in enumerate(choices[: body.n])
        ],
        usage=session.usage(),
        service_tier=session.tier,
        system_fingerprint=session.fingerprint,
        prompt_token_ids=session.prompts[0].token_ids if body.return_token_ids else None,
    )
    made = completion.model_dump()
    for choice, collected in zip(made["choices"], choices, strict=False):
        if collected.scores is not None:
            choice["logprobs"] = collected.scores.json()
    if body.prompt_logprobs is not None:
        text, scores = session.state.engine.text, session.prompt_logprobs(0)
        made["prompt_logprobs"] = await prompt_logprobs(text, scores, body.prompt_logprobs)
    return encode(made)


def _choice(
    session: InferenceSession, body: ChatCompletionRequest, index: int, collected: _Collected
) -> ChatChoice:
    if collected.last is None or collected.last.finish_reason is None:
        raise ApiError("The engine ended without finishing the answer.", code="engine_error")
    echo = session.prompts[0].echo
    texts = [echo, *collected.texts] if echo else collected.texts
    return ChatChoice(
        index=index,
        message=AssistantMessage(
            content="".join(texts) if texts or not collected.calls else None,
            tool_calls=collected.calls or None,
        ),
        finish_reason=collected.reader.finish_reason(collected.last.finish_reason),
        **stopped_by(session, collected.last).model_dump(),
        token_ids=collected.token_ids if body.return_token_ids else None,
    )


async def chat_stream(
    session: InferenceSession, body: ChatCompletionRequest
) -> AsyncGenerator[bytes]:
    """Server-sent events. A failure after the first is an `error` event, as OpenAI's clients expect
    it; one before the first is raised."""
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    chunks = Chunks(session, "chat.completion.chunk", body)
    readers = readers_of(session)
    begun: set[int] = set()
    held = b""  # the last chunks of choices go out with what follows them
    try:
        async with contextlib.aclosing(session.pieces()) as pieces:
            async for piece in pieces:
                if piece.choice not in begun:
                    content = session.prompts[0].echo or readers[piece.choice].no_content
                    role = {"role": "assistant", "content": content}
                    more: dict[str, Any] = {}
                    if body.return_token_ids and not begun:
                        more["prompt_token_ids"] = session.prompts[0].token_ids
                    if chunks.counts and not begun:  # it says nothing yet
                        more["usage"] = session.usage_so_far(begun=False)
                    begun.add(piece.choice)
                    held += chunks.rare([_delta(piece.choice, role, None, None)], **more)
                for choice in _choices(session, body, piece, readers[piece.choice]):
                    held += chunks.of(choice)
                if piece.finish_reason is None and held:
                    yield held
                    held = b""
        if include_usage:
            held += chunks.rare([], usage=session.usage().model_dump())
    except (ApiError, EngineError) as error:
        if not begun:
            raise
        failure = session.fail(error)
        yield held + sse(failure.body())
        return
    yield held + DONE


def _choices(
    session: InferenceSession, body: ChatCompletionRequest, piece: Piece, reader: ChoiceReader
) -> Iterator[bytes]:
    """The choice of each chunk that a piece becomes: with tools there may be none, or several."""
    if reader.reads_nothing:
        yield _piece(session, body, piece)
        return
    deltas = reader.deltas(piece)
    for delta in deltas:
        yield encode(_delta(piece.choice, delta, None, None))
    if piece.finish_reason is None and not body.logprobs and not body.return_token_ids:
        return
    last = msgspec.structs.replace(piece, text="")
    reason = None
    if piece.finish_reason is not None:
        reason = reader.finish_reason(piece.finish_reason)
    yield _piece(session, body, last, reason)


def _piece(
    session: InferenceSession,
    body: ChatCompletionRequest,
    piece: Piece,
    reason: FinishReasonText | None = None,
) -> bytes:
    """The choice of its chunk. Nearly all of them are a text and nothing more."""
    if piece.finish_reason is None and not body.logprobs and not body.return_token_ids:
        return b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (
            piece.choice,
            encode(piece.text),
        )
    delta = {"content": piece.text} if piece.text else {}
    scores = _scores(session, body) if piece.logprobs else None
    if scores is not None:
        scores.add(piece.logprobs)
    logprobs = None if scores is None else scores.json()
    choice = _delta(piece.choice, delta, logprobs, reason or piece.finish_reason)
    if piece.finish_reason is not None:
        choice |= stopped_by(session, piece).model_dump()
    return encode({**choice, "token_ids": piece.token_ids} if body.return_token_ids else choice)


def _delta(
    index: int, delta: dict[str, Any], logprobs: msgspec.Raw | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
