"""What of an error may be kept: its own words, without what it quotes of the request. It knows
texts and JSON, no request and no row."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from tenora_platform.errors import ApiError
from tenora_platform.keys import hide_keys

MESSAGE_MAX = 500
PARAM_MAX = 200
NAME_MAX = 120
HIDDEN = "…"
_VALUES_MAX = 10_000
"""Values of a request that are compared with a message; of a larger one nothing quoted is kept."""
_CUT_FROM = 20
"""From so many characters on, what a message quotes may be a text's beginning only."""
_WORDS_OF_OURS = ("model", "role", "type")
_NAMED_BY_CLIENTS = (
    "metadata",
    "logit_bias",
    "chat_template_kwargs",
    "schema",
    "parameters",
    "input_schema",
    "arguments",
)
"""Fields whose own fields clients name; so are those of a tool call's `input`."""
_QUOTED = re.compile(
    r"(?<!\w)'((?:[^'\\]|\\.)*)'(?!\w)|\"((?:[^\"\\]|\\.)*)\"|`([^`]*)`", re.DOTALL
)
_GIVEN = re.compile(r'\bnot "(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"[\w@./:*<>+=-]{1,64}")
_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,40}")


def message_of(error: ApiError, asked: Any) -> str:
    """The error's message as it may be kept. `asked`: the request's JSON, as far as it was read.
    What is quoted stays if it is a name and either the model's or nowhere in the request."""
    text = error.message if error.kept is None else error.kept
    if error.param:
        for field in (error.param, error.param[:100]):
            text = text.replace(field, _shown(field))
    model = model_of(asked)
    known = _texts(asked)

    def shown(found: re.Match[str]) -> str:
        said = found[1] or found[2] or found[3] or ""
        is_name = _NAME.fullmatch(said) is not None
        ours = is_name and known is not None and not any(_quotes(text, said) for text in known)
        return found[0] if ours or (model is not None and said == model) else HIDDEN

    text = _GIVEN.sub(f'not "{HIDDEN}"', text)  # the value of a field, whatever it is called
    return plain(_QUOTED.sub(shown, text), MESSAGE_MAX)


def param_of(error: ApiError) -> str | None:
    """The field's path, `messages[0].content`; what the client has named itself is left out."""
    return None if error.param is None else plain(_shown(error.param), PARAM_MAX)


def model_of(asked: Any) -> str | None:
    model = asked.get("model") if isinstance(asked, dict) else None
    return plain(model, NAME_MAX) if isinstance(model, str) else None


def plain(text: str, most: int) -> str:
    """At most so many characters, none of which steers a terminal, a database or a page, and no
    key."""
    text = hide_keys(text)
    shown = "".join(" " if unicodedata.category(each)[0] == "C" else each for each in text[:most])
    return shown if len(text) <= most else shown[:-1] + HIDDEN


def _shown(param: str) -> str:
    parts: list[str] = []
    theirs = False
    for part in param.split("."):
        name, _, places = part.partition("[")
        ours = not theirs and _PART.fullmatch(name) and not re.sub(r"[\d\[\]]", "", places)
        theirs = theirs or name in _NAMED_BY_CLIENTS or (name == "input" and parts != [])
        parts.append(part if ours else HIDDEN)
    return ".".join(parts)


def _quotes(text: str, said: str) -> bool:
    return text == said or (len(said) >= _CUT_FROM and said in text)


def _texts(asked: Any) -> list[str] | None:
    """The texts of a request, its model's name and the words of the API left out; None: there are
    too many values."""
    found: list[str] = []
    waiting = [asked]
    for _ in range(_VALUES_MAX):
        if not waiting:
            return found
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [value for name, value in each.items() if name not in _WORDS_OF_OURS]
            found += each if each is not asked else ()
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, str):
            found.append(each)
    return None
