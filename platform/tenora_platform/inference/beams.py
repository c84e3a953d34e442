"""Beam search as bodies ask for it, in vLLM's fields, and what does not go together with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from tenora_engine.request import BEAM_WIDTH_MAX, BeamSearch
from tenora_platform.errors import BadRequestError
from tenora_platform.inference.neutral_fields import unsupported
from tenora_platform.inference.parameters import Generation, sequences_of
from tenora_platform.inference.schemas import SamplingFields

_WITHOUT: dict[str, tuple[Any, ...]] = {
    "length_penalty": (None, 1),
    "early_stopping": (None, False),
}
_TOGETHER: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "temperature": (None, 0),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "seed": (None,),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "stop": (None, "", []),
    "stop_regex": (None, []),
    "logprob_token_ids": (None,),
    "prediction": (None,),
    "prompt_logprobs": (None,),
}
"""The values which ask for nothing, without a beam search and together with one."""


def with_beams(body: SamplingFields, generation: Generation) -> Generation:
    """The same as a beam search, where the body asks for one: its width is `best_of`, or `n`.
    Raises BadRequestError that names what does not go together."""
    if not body.use_beam_search:
        _refuse(body, _WITHOUT, "has an effect only with use_beam_search: true")
        return generation
    _refuse(body, _TOGETHER, "cannot be combined with use_beam_search")
    sampling, width = generation.sampling, sequences_of(body)
    of_prompt = sampling.prompt_logprobs is not None
    if of_prompt and sampling.max_tokens:
        raise unsupported("echo", "echo with logprobs cannot be combined with use_beam_search")
    if of_prompt:
        raise unsupported("max_tokens", "max_tokens of 0 cannot be combined with use_beam_search")
    if sampling.grammar is not None:
        is_forced = generation.tools is not None and generation.tools.forced
        name = "tool_choice" if is_forced else sampling.grammar.param
        raise unsupported(name, f"{name} cannot be combined with use_beam_search")
    if width > BEAM_WIDTH_MAX:
        raise BadRequestError(
            f"A beam search can have at most {BEAM_WIDTH_MAX} beams (n or best_of), not {width}.",
            param="n" if body.best_of is None else "best_of",
            code="invalid_value",
        )
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    beams = BeamSearch(length_penalty=penalty, early_stopping=body.early_stopping or False)
    sampling = msgspec.structs.replace(sampling, temperature=0.0, n=width, beams=beams)
    return dataclasses.replace(generation, sampling=sampling)


def _refuse(body: SamplingFields, neutral: dict[str, tuple[Any, ...]], why: str) -> None:
    for name, values in neutral.items():
        if getattr(body, name, None) not in values:
            raise unsupported(name, f"{name} {why}")
