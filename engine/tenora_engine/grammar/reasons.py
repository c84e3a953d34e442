"""Why a grammar cannot be followed, in words for whoever wrote it: at times the library says it by
the name of one of its states."""

from __future__ import annotations

from typing import Any

_SENTENCES = {
    "NoExtension": "there is no text that may come next",
    "NoExtensionBias": "there is no text that may come next",
    "LexerTooComplex": "its terminals are too complex",
    "ParserTooComplex": "it is too complex",
    "MaxTokensTotal": "it allows no more tokens",
    "MaxTokensParser": "it allows no more tokens",
    "EndOfSentence": "it has ended",
    "InternalError": "the library failed on it",
}
_TOO_MUCH = {
    "too many states": "what was written has used up what its strings and expressions may take",
    "too many expressions": "its expressions may go on in too many ways",
}
_ADVICE = "use smaller counts (maxLength, {m,n}), none, or an expression that begins with ^"
_UNTOLD = "what may come next takes too long to find"
_TAIL = "<non-verbose/>"  # the library's, where it would say more to its own people


def reason_of(matcher: Any) -> str:  # llguidance.LLMatcher
    """Return why a matcher is in error, or raised without a word."""
    return sentence_of(matcher.get_error() or "")


def sentence_of(error: str) -> str:
    """The library's words on one line, or what its state means."""
    lines = error.strip().removesuffix(_TAIL).splitlines()
    said = "; ".join(line.strip() for line in lines if line.strip())
    for beginning, sentence in _TOO_MUCH.items():
        if beginning in said:
            return f"{sentence}; {_ADVICE}"
    return _SENTENCES.get(said, said) or _UNTOLD
