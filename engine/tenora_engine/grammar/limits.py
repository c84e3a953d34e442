"""What a grammar may cost. The library bounds most of its own work in units of its own; what it
does not bound, the checker's time and memory do."""

from __future__ import annotations

from typing import Any

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
that an answer has: 400 bytes each, so that 20 MB are the most."""


def parser_limits(*, is_plain: bool = False) -> Any:  # llguidance.LLParserLimits
    from llguidance import LLParserLimits

    own = {"max_lexer_states": PLAIN_STATES} if is_plain else {}
    return LLParserLimits(**(PARSER_LIMITS | own))
