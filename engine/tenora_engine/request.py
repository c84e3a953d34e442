"""What a request is when it reaches the engine: token ids, sampling, an adapter by digest, a tenant
by key. It does not know HTTP, names of models, prices or people."""

from __future__ import annotations

from typing import Literal

import msgspec

WEIGHT_MIN, WEIGHT_MAX = 0.01, 100.0
"""Between which a tenant's weight lies: the queue divides by it."""

LateAction = Literal["refuse", "relegate", "best_effort"]


REPETITION_PENALTY_MIN = 0.01
REPETITION_PENALTY_MAX = 10.0
"""Beyond them a logit that is scaled says nothing any more, and may leave float32."""

BEAM_WIDTH_MAX = 32
"""Of one beam search: each beam takes a row of every step, and a step chooses among as many tokens
of each as there are beams."""

LENGTH_PENALTY_MAX = 10.0
"""Beyond it, either way, the length alone decides."""


GrammarKind = Literal["json_schema", "regex", "choice", "grammar"]

JSON_DEPTH = 8
JSON_DEPTH_MAX = 64
"""Levels of objects and lists in an answer that follows a JSON schema: beyond what the schema
itself asks for, so many; and the most that a request may ask for."""


class Grammar(msgspec.Struct, frozen=True):
    """What a text may be. `text` is a JSON schema, a regular expression that all of it matches, a
    JSON list of the texts it may be, or a context-free grammar (Lark's or GBNF); as llguidance
    understands them. Of a JSON schema the answer has a space behind `:` and `,` or none, and no
    other spaces between its tokens; `max_depth` bounds its levels, and where it `closes` the last
    of `max_tokens` end what is open, where the schema lets them (`grammar.closing`)."""

    kind: GrammarKind
    text: str
    param: str = "grammar"  # what the caller knows it by, for errors
    closes: bool = True
    max_depth: int = JSON_DEPTH


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True):
    """How a beam search compares texts and when it ends, as in transformers' `generate`. A text's
    score is the sum of its tokens' log probabilities over their number to the power of
    `length_penalty`. With `early_stopping` it ends when `n` texts have ended; without, when no text
    of the present length could be better than these; "never" looks ahead to the largest one."""

    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one request are chosen. `scheduling.admission` says which values are
    valid; the engine asks it of every request.

    `temperature` 0 is greedy, and so is what lies below float32's normal numbers. `top_k` 0 is off.
    `logprobs` None is off, else the number of alternatives to report beside the chosen token
    (0-20); or, where it is 0, those of `logprob_token_ids`. `prompt_logprobs` is the same of the
    prompt's own tokens, each after those before it (the first has none), of the first of `n`
    sequences. Of a prompt that `embeds` the hidden state of the last token is wanted, as the LM
    head would read it. With either `max_tokens` may be 0.
    Stop *strings* are matched where text is made (`tenora_engine.text`), never here.

    No token that would end the sequence comes among the first `min_tokens`, none but
    `allowed_token_ids` at all, and none that completes one of `bad_words` (token ids, within the
    output). Where these leave nothing, `min_tokens` and `bad_words` give way.

    Of what a `grammar` does not allow nothing comes, whatever else is asked for; the sequence ends
    by "stop" when it is complete, and may end where it can be. `ignore_eos` does not change that.

    With `beams` the n sequences are the n best texts that a beam search of that width finds, the
    best first; their tokens come when it has ended.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    max_tokens: int = 16
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    embeds: bool = False
    grammar: Grammar | None = None
    beams: BeamSearch | None = None


class AdapterRef(msgspec.Struct, frozen=True):
    """One adapter version by what it is, not by what it is called."""

    digest: str  # "sha256:<64 hex>", the content digest; also its key in every store
    rank: int  # the largest rank of any module
    draft_layer: str | None = None  # digest of one of its own, "sha256:<64 hex>" of the file


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as the engine knows one: a key with a weight and deadlines.

    `late` is what becomes of a request whose first token cannot come within `ttft_ms`: it is
    refused, or waits in the lowest class from then on, or keeps its place. Whether it can is asked
    when it comes, and again as long as it waits.
    """

    key: str  # opaque and stable; the same key in usage and in statistics
    namespace: str  # prefix-cache namespace: HMAC of the tenant, or of its trust group
    weight: float = 1.0  # WEIGHT_MIN to WEIGHT_MAX: its share among the tenants of its class
    tier: str = "default"  # names its class (scheduling.class_queue)
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    late: LateAction = "best_effort"
    min_memory_share: float = 0.0  # of the page arena: guaranteed; in strict mode all it has
    max_memory_share: float = 1.0  # beyond it the tenant only borrows
    keeps_answers: bool = False  # its answers may draft its own later ones (scheduling.drafts)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Each of its `sampling.n` sequences ends in one FinishEvent, or all of them are
    refused in one RefusedEvent before any has run."""

    request_id: str
    tenant: Tenant
    prompt_token_ids: list[int]
    sampling: SamplingParams
    adapter: AdapterRef | None = None
    prediction_token_ids: list[int] = []  # what the caller thinks the answer will be much like
    waited_s: float = 0.0  # that it had waited at its client when it was sent
    context: dict[str, str] = {}  # the caller's own words, given back in the usage record
    part_of: str | None = None
    """Names the body of which it is one of `parts`; they are charged together, or not at all.
    Whoever does not send all of them, or has one refused, aborts the others."""
    parts: int = 1
    ends_by_text: bool = False
    """A stop string in the text may end its sequences. What one of them is charged that ended by
    itself is settled when the client has said where the text ended: `EngineClient.abort` with
    reason "stop"."""
    cache_salt: str = ""
    """Within its tenant's namespace it shares cached KV with requests of the same salt alone."""
