"""A model's own chat template, rendered in jinja's sandbox with what transformers offers templates:
the special tokens, raise_exception, strftime_now, tojson and the generation tag."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenora_engine.clocks import local_now
from tenora_engine.errors import InvalidRequestError, ModelLoadError
from tenora_engine.printable import brief

PARAM = "messages"
CHARACTERS_MAX = 4 * 1024**2
"""The default bound of a rendered conversation."""


class Renders(Protocol):
    """What makes one text of a conversation."""

    @property
    def source(self) -> str: ...

    def render(
        self, messages: Sequence[Mapping[str, Any]], most: int = ..., /, **arguments: Any
    ) -> str: ...

    def render_open(
        self, messages: Sequence[Mapping[str, Any]], most: int = ..., /, **arguments: Any
    ) -> str: ...


class ChatTemplate:
    """One compiled template and the special tokens it may write. `code` is what compiling the same
    source gave before, where that is known: it is run as it is."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], code: CodeType | None = None
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self.code = code or environment.compile(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"the model's chat template is broken: {brief(error)}") from error
        no_globals = environment.make_globals(None)
        self._template = jinja2.Template.from_code(environment, self.code, no_globals)
        self._special_tokens = dict(special_tokens)
        self.source = source

    @classmethod
    def read(cls, folder: Path) -> ChatTemplate | None:
        """The template of a model folder, from wherever transformers would look; None when it has
        none."""
        config = _read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        if file.is_file():
            source: Any = _read_text(file)
            if not source:
                raise ModelLoadError(f"{file} is empty; restore it, or remove it for no template")
        else:
            source = _read_json(folder / "chat_template.json").get("chat_template")
            source = source or config.get("chat_template")
        if isinstance(source, list):  # several by name; the plain one is "default"
            source = _by_name(source, folder).get("default")
        if not source:
            return None
        if not isinstance(source, str):
            raise ModelLoadError(f"the chat template of {folder} is no text")
        return cls(source, read_special_tokens(folder))

    @staticmethod
    def require(template: Renders | None) -> Renders:
        """`template`, or InvalidRequestError when the model has none."""
        if template is None:
            raise InvalidRequestError(
                "the base model has no chat template; use /v1/completions with a prompt", PARAM
            )
        return template

    def render(
        self, messages: Sequence[Mapping[str, Any]], most: int = CHARACTERS_MAX, /, **arguments: Any
    ) -> str:
        """Raises InvalidRequestError in the template's own words when it refuses the messages, and
        as soon as it has written more than `most` characters."""
        values = {"documents": None, **arguments, **self._special_tokens, "messages": messages}
        pieces, length = [], 0
        try:
            for piece in self._template.generate(values):
                length += len(piece)
                if length > most:
                    break
                pieces.append(piece)
        except Exception as error:  # the template's own code, over whatever the messages hold
            raise InvalidRequestError(
                f"the messages do not fit the model's chat template: {brief(error)}", PARAM
            ) from error
        if length > most:
            raise InvalidRequestError(
                f"the chat template writes more than {most} characters, which is longer than any "
                "prompt can be; shorten the messages",
                PARAM,
            )
        return "".join(pieces)

    def render_open(
        self, messages: Sequence[Mapping[str, Any]], most: int = CHARACTERS_MAX, /, **arguments: Any
    ) -> str:
        """Up to the end of the last message's content, which is left open, as transformers'
        `continue_final_message` does. A mark behind the content finds the place; where the template
        trims the space behind the mark, it trims what the content ends with as well."""
        mark = f"(#{secrets.randbelow(10**18)}#)"
        *before, last = messages
        opened = {**last, "content": f"{last.get('content') or ''}{mark} "}
        text = self.render([*before, opened], most + len(mark) + 1, **arguments)
        place = text.rfind(mark)
        if place < 0:
            raise InvalidRequestError(
                "the model's chat template does not show the final message as it is, so that it "
                "cannot be continued",
                PARAM,
            )
        if text[place:].startswith(f"{mark} "):
            return text[:place]
        return text[:place].rstrip()


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant wrote, for training; here
    it only has to be understood."""

    tags = {"generation"}  # noqa: RUF012 - the attribute jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _by_name(listed: list[Any], folder: Path) -> dict[str, Any]:
    try:
        return {item["name"]: item["template"] for item in listed}
    except (KeyError, TypeError) as error:
        raise ModelLoadError(f"the chat templates of {folder} are not listed by name") from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{file} could not be read: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise ModelLoadError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} is not a JSON object")
    return value


def read_special_tokens(folder: Path) -> dict[str, str]:
    """What templates of the model in `folder` may write, by name (`bos_token`)."""
    config = _read_json(folder / "tokenizer_config.json")
    return _special_tokens(config, _read_json(folder / "special_tokens_map.json"))


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and their like; the first source that names one wins."""
    tokens: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            if not name.endswith("_token"):
                continue
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens.setdefault(name, content)
    return tokens


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML characters, which a model should not see.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return local_now().strftime(pattern)
