"""What a grammar may cost. The library bounds most of its own work in units of its own; what it
does not bound, the checker's time and memory do."""

from __future__ import annotations

from typing import Any

from tenora_engine.errors import InvalidRequestError
from tenora_engine.request import Grammar

PARSER_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,  # 20 ms
    "step_lexer_fuel": 40_000,  # 3 ms of one mask by its documentation; 16 were seen
    "step_max_items": 20_000,  # 1 ms of one mask
    "max_lexer_states": 20_000,  # 1 to 2 kB each
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # they would repeat what users wrote
}
"""Of 500 schemas of MaskBench as many compile, and as many outputs pass, as with the library's own
limits, which are several times as high."""

KEY_SEPARATOR, ITEM_SEPARATOR = ": ?", ", ?"
"""Expressions of what stands between the tokens of JSON: as adapters were trained, with a space or
without, but never a run of them, of which a weak model would find no end."""

CHECK_MEMORY_BYTES = 512 * 1024**2  # address space of the process that compiles a grammar first


PLAIN_STATES = 50_000
"""Lexer states where a schema brings no expressions of its own, and they come by the characters
that an answer has: 750 bytes each at most."""

CHARACTER_BYTES = 9_000
"""States of a lexer for a character that is counted, by malloc after 8,000 tokens of Japanese: 8.2
MiB for strings of maxLength 1,000, 16.3 MiB of 2,000, 23.9 MiB for 3,810 characters in strings of
twenty lengths. English takes a third."""

TOKEN_BYTES = 60_000
"""States by which a token may add to them: one of 26 spaces where two expressions count, which is
the dearest measured. A token of Japanese takes 2,000 to 4,000, an English word 20,000."""

EXPRESSION_CHARACTERS_MAX = 2_000
"""Characters that fill a lexer where a grammar has expressions: 20,000 states took 16.9 MiB."""

STATES_BYTES_MAX = 36 * 1024**2
"""States of one lexer: PLAIN_STATES, of which 34,000 took 23.9 MiB."""


def states_bytes(characters: int, tokens: int | None = None) -> int:
    """Host memory in bytes that a lexer's states may come to, where a grammar counts so many
    characters and its answers have so many tokens. All who follow one share the states."""
    by_tokens = STATES_BYTES_MAX if tokens is None else TOKEN_BYTES * tokens
    return min(CHARACTER_BYTES * characters, by_tokens, STATES_BYTES_MAX)


def check_size(grammar: Grammar, most: int) -> None:
    """Raises InvalidRequestError where a grammar has more bytes than that. It comes before anything
    reads the text."""
    text = grammar.text
    if len(text) > most or len(text.encode(errors="surrogatepass")) > most:
        raise InvalidRequestError(
            f"{grammar.param} has more than {most} bytes, the most that a grammar can have: "
            "make it shorter",
            grammar.param,
        )


def parser_limits(*, is_plain: bool = False) -> Any:  # llguidance.LLParserLimits
    from llguidance import LLParserLimits

    own = {"max_lexer_states": PLAIN_STATES} if is_plain else {}
    return LLParserLimits(**(PARSER_LIMITS | own))
