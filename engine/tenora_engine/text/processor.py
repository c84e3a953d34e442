"""Text to token ids and back, for one model folder. Runs in the caller's process and imports no
torch, so that text costs the engine nothing and the API little memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.end_tokens import read_eos_token_ids
from tenora_engine.text.chat_template import ChatTemplate
from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_engine.text.token_bytes import TokenBytes

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
                f"the model folder {folder} has no tokenizer.json; save the model's fast tokenizer "
                "there (AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{file} could not be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bytes = TokenBytes(self._tokenizer)
        self._longest_token = _longest_token(self._tokenizer)
        self._template = ChatTemplate.read(folder)
        self.eos_token_ids = read_eos_token_ids(folder)
        """The ids that end a sequence, the model's own first. Empty when it names none."""

    @property
    def vocab_size(self) -> int:
        """Added tokens included. A model's logits may be wider."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt; special tokens written out in it count as such. Where the
        text is long, other threads run meanwhile."""
        if len(text) <= _SHORT_CHARACTERS:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        # Of the library's methods only those for batches give Python's lock away.
        [made] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(made.ids)

    def characters_max(self, tokens: int) -> int:
        """No text of more characters than this is so few tokens, whatever it says: each token
        stands for as many characters as the vocabulary's longest at most."""
        return tokens * self._longest_token

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_arguments: Any,
    ) -> list[int]:
        """Token ids of a conversation through the model's own chat template. Raises
        InvalidRequestError (param "messages") when the template refuses it or there is none."""
        text = self.render_chat(messages, add_generation_prompt, tools, **template_arguments)
        return self.encode(text, add_special_tokens=False)  # the template writes them itself

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_arguments: Any,
    ) -> str:
        """The text that `encode_chat` encodes."""
        return ChatTemplate.require(self._template).render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **template_arguments
        )

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

    def detokenizer(
        self, stop: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> IncrementalDetokenizer:
        """A fresh detokenizer for one sequence."""
        return IncrementalDetokenizer(
            lambda token_id: self._bytes.of(token_id, skip_special), stop, include_stop
        )


def _longest_token(tokenizer: Tokenizer) -> int:
    """Characters that one token can stand for at most, in the byte-level and byte-fallback
    vocabularies that this package reads."""
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    # A normaliser composes: one character of four at most (Unicode's canonical forms).
    return longest if tokenizer.normalizer is None else 4 * longest
