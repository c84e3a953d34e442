"""The bytes each token id stands for, in byte-level (GPT-2) and byte-fallback (SentencePiece)
vocabularies."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Looks each id up once and keeps the answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        kinds = _decoder_kinds(tokenizer)
        self._byte_level, self._falls_back = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._byte_of = {character: byte for byte, character in byte_level_alphabet().items()}
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int, skip_special: bool, shown: Collection[str] = ()) -> bytes:
        """Nothing for an id outside the vocabulary, or a special one when those are skipped, which
        those `shown` are not."""
        if skip_special:
            added = self._added.get(token_id)
            if added is not None and added.special and added.content not in shown:
                return b""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return str(added.content).encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        match = _BYTE_TOKEN.fullmatch(token)
        if match and (self._falls_back or not self._byte_level):
            return bytes([int(match.group(1), 16)])
        if self._byte_level:
            # As the library: one letter outside the alphabet, and the token stands for itself.
            known = [self._byte_of.get(character) for character in token]
            whole = [byte for byte in known if byte is not None]
            return bytes(whole) if len(whole) == len(known) else str(token).encode()
        return str(token).replace("\u2581", " ").encode()


def label_of(token_bytes: bytes) -> str:
    """Their text, or where they are no whole characters what OpenAI writes: `bytes:\\xe6\\xb0`,
    printable ASCII as it is. Different bytes have different labels."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(map(_BYTE_LABELS.__getitem__, token_bytes))


_BYTE_LABELS = [
    chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in range(256)
]


def byte_level_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 characters stand for themselves,
    the other bytes for the characters from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet.update((byte, chr(0x100 + order)) for order, byte in enumerate(rest))
    return alphabet


def _decoder_kinds(tokenizer: Tokenizer) -> set[str]:
    if tokenizer.decoder is None:
        return set()
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return {part["type"] for part in state.get("decoders", [state])}
