"""What an answer repeats of what was asked, before anything is generated: each of its choices has
it again, so that it is bounded. Knows no session."""

from __future__ import annotations

from collections.abc import Sequence

from tenora_engine.text.processor import TextProcessor
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.messages import template_messages
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.parameters import sequences_of
from tenora_platform.inference.schemas import ChatCompletionRequest, CompletionRequest

REPEATED_CHARACTERS_MAX = 2**23
"""In one answer, of all its choices: as much as a body may hold."""
_ID_CHARACTERS = 8
"""Of a token id, as JSON."""


def chat_echo(
    body: ChatCompletionRequest, text: TextProcessor, whole: Sequence[int], kept: Sequence[int]
) -> str:
    """The message that is gone on with; of a prompt that `truncate_prompt_tokens` has cut off,
    what the model is shown of it. Raises BadRequestError."""
    echo = str(template_messages([body.messages[-1]])[0]["content"])
    if len(kept) < len(whole):
        if body.truncation_side == "right":
            raise unsupported(
                "echo", "echo cannot be combined with a prompt that is cut off on the right"
            )
        shown = len(text.decode(kept))
        echo = echo[max(len(echo) - shown, 0) :]
    _refuse_too_long(body, len(echo))
    return echo


def prompt_echo(body: CompletionRequest, text: TextProcessor, token_ids: Sequence[int]) -> str:
    return text.decode(token_ids, skip_special=body.skip_special_tokens) if body.echo else ""


def refuse_too_long_repeats(body: CompletionRequest, echoes: Sequence[str], tokens: int) -> None:
    """Raises BadRequestError where the echoes, or the ids of so many tokens of prompts, would make
    too much of an answer."""
    ids = tokens * _ID_CHARACTERS if body.return_token_ids else 0
    _refuse_too_long(body, sum(map(len, echoes)) + ids)


def _refuse_too_long(body: ChatCompletionRequest | CompletionRequest, characters: int) -> None:
    repeated = characters * sequences_of(body)
    if repeated > REPEATED_CHARACTERS_MAX:
        raise BadRequestError(
            f"The answer would repeat {repeated} characters of the prompt, once for each choice; "
            f"at most {REPEATED_CHARACTERS_MAX} are allowed. Lower n or best_of, or leave "
            f"{'echo' if body.echo else 'return_token_ids'} out.",
            param="echo" if body.echo else "return_token_ids",
            code="invalid_value",
        )
