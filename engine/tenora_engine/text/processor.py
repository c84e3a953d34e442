"""Text to token ids and back, for one model folder. Runs in the caller's process and imports no
torch, so that text costs the engine nothing and the API little memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.end_tokens import read_eos_token_ids
from tenora_engine.text.chat_template import (
    CHARACTERS_MAX,
    ChatTemplate,
    Renders,
    read_special_tokens,
)
from tenora_engine.text.control_tokens import ControlTokens
from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_engine.text.stop_patterns import StopPattern
from tenora_engine.text.token_bytes import TokenBytes, label_of
from tenora_engine.text.tool_formats import takes_tools
from tenora_engine.text.tool_prompt import in_words

_SHORT_CHARACTERS = 2048  # up to here another thread can wait: well under a millisecond


class TextProcessor:
    """Tokenizer, chat template and detokenizer of the model in `model_folder`.

    Raises ModelLoadError when the folder has no tokenizer.json. Safe to share between threads and
    tasks: nothing of a request is kept here.
    """

    def __init__(self, model_folder: str | Path) -> None:
        folder = Path(model_folder)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(
                f"the model folder {folder} has no tokenizer.json; save the model's fast "
                "tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{file} could not be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bytes = TokenBytes(self._tokenizer)
        self._longest_token = _longest_token(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._control = ControlTokens([token.content for token in added if token.special])
        self._template = ChatTemplate.read(folder)
        self.special_tokens = read_special_tokens(folder)
        """What a template may write, by name (`bos_token`)."""
        self.eos_token_ids = read_eos_token_ids(folder)
        """The ids that end a sequence, the model's own first. Empty when it names none."""

    @property
    def vocab_size(self) -> int:
        """Added tokens included. A model's logits may be wider."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def is_control(self, text: str) -> bool:
        """Whether a control token is written so."""
        return self._control.occur_in(text)

    @property
    def chat_template_source(self) -> str | None:
        """The model's own chat template, as it is written."""
        return None if self._template is None else self._template.source

    def encode(
        self, text: str, add_special_tokens: bool = True, control_tokens: bool = True
    ) -> list[int]:
        """Token ids of a plain prompt. Control tokens written out in it count as such, or with
        `control_tokens` False stay text. Where the text is long, other threads run meanwhile."""
        tokenizer = self._tokenizer
        if not control_tokens and self._control.occur_in(text):
            tokenizer = self._plain
        return _encoded(tokenizer, text, add_special_tokens)

    def characters_max(self, tokens: int) -> int:
        """No text of more characters than this is so few tokens, whatever it says: each token
        stands for as many characters as the vocabulary's longest at most."""
        return tokens * self._longest_token

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        control_tokens: bool = True,
        template_arguments: Mapping[str, Any] | None = None,
        template: Renders | None = None,
        characters_most: int = CHARACTERS_MAX,
    ) -> list[int]:
        """Token ids of a conversation through the model's own chat template, or another's. With
        `control_tokens` False those written out in the messages or other arguments stay text.
        Raises InvalidRequestError (param "messages") when the template refuses it, there is none,
        or it writes more than `characters_most`."""
        given = [messages, tools, template_arguments]
        shield = None
        if not control_tokens and self._control.occur_in(given):
            shield = self._control.shield()
            messages, tools, template_arguments = shield.hide(given)
        text = self.render_chat(
            messages,
            add_generation_prompt,
            tools,
            continue_final_message,
            template_arguments,
            template,
            characters_most,
        )
        if shield is None:
            return self.encode(text, add_special_tokens=False)  # the template writes them itself
        token_ids: list[int] = []
        for piece, controls in shield.split(text):
            tokenizer = self._tokenizer if controls else self._plain
            token_ids += _encoded(tokenizer, piece, add_special_tokens=False)
        return token_ids

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_arguments: Mapping[str, Any] | None = None,
        template: Renders | None = None,
        characters_most: int = CHARACTERS_MAX,
    ) -> str:
        """The text that `encode_chat` encodes. With `continue_final_message` it ends where the
        last message does, for the model to go on with. A template that takes no tools has them in
        words."""
        renders = ChatTemplate.require(template or self._template)
        if not takes_tools(renders.source):
            messages, tools = in_words(messages, tools, renders.source), None
        arguments = {
            **(template_arguments or {}),
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
        }
        if continue_final_message:
            return renders.render_open(messages, characters_most, **arguments)
        return renders.render(messages, characters_most, **arguments)

    def prepare_plain(self) -> None:
        """Make now what the first control token that stays text would wait for (0.3 s for a
        vocabulary of 49152)."""
        _ = self._plain

    @cached_property
    def _plain(self) -> Tokenizer:
        """Takes control tokens for text. A tokenizer of its own: the library's switch is not the
        call's."""
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        return tokenizer

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `token_ids`, as it would stream: no space is taken off the front, and bytes
        that make no character become U+FFFD."""
        pieces = [self._bytes.of(token_id, skip_special) for token_id in token_ids]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; a special token's are its name's. For logprobs."""
        return self._bytes.of(token_id, skip_special=False)

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD where they are part of a character only."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_label(self, token_id: int) -> str:
        """`token_bytes` as text that tells tokens apart: see `label_of`."""
        return label_of(self.token_bytes(token_id))

    def token_name(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty for an id that it does not have."""
        return self._tokenizer.id_to_token(token_id) or ""

    def detokenizer(
        self,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
        shown: Collection[str] = (),
        offsets: bool = False,
        patterns: Sequence[StopPattern] = (),
    ) -> IncrementalDetokenizer:
        """A fresh detokenizer for one sequence. Special tokens that are `shown` are not skipped."""
        token_bytes = partial(self._bytes.of, skip_special=skip_special, shown=frozenset(shown))
        return IncrementalDetokenizer(
            token_bytes, stop, include_stop, min_tokens, offsets, patterns
        )


def _encoded(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    if len(text) <= _SHORT_CHARACTERS:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
    # Of the library's methods only those for batches give Python's lock away.
    [made] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(made.ids)


def _longest_token(tokenizer: Tokenizer) -> int:
    """Characters that one token can stand for at most, in the byte-level and byte-fallback
    vocabularies that this package reads."""
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    # A normaliser composes: one character of four at most (Unicode's canonical forms).
    return longest if tokenizer.normalizer is None else 4 * longest
