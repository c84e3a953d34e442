"""Renderer: has chat templates that came with adapters rendered in processes apart, and keeps what
compiling them gave, unread, for the next process. Knows no tenant and no adapter."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tenora_engine.errors import InvalidRequestError
from tenora_engine.fair_cache import FairCache
from tenora_engine.printable import brief
from tenora_engine.text.chat_template import CHARACTERS_MAX
from tenora_platform.apart.client import Apart, ApartUnavailableError
from tenora_platform.apart.tasks import TEMPLATE
from tenora_platform.errors import UnavailableError
from tenora_platform.templates.process import Answer, Question

_PARAM = "messages"
COMPILED_KEPT, COMPILED_BYTES_MAX = 64, 512 * 1024
"""Templates whose compiled code is kept; larger code is compiled anew each time."""


class Renderer:
    """Safe to use from several threads at once."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self._lock = threading.Lock()
        self._compiled: FairCache[str, bytes] = FairCache(COMPILED_KEPT)

    def render(self, question: Question, owner: str | None = None, tenant_id: str = "") -> str:
        """Blocks. `owner` is whose template it is, and of which tenant: what it compiled to is
        given to processes for the same owner alone, because it could be anything. Raises
        InvalidRequestError in the template's words, and where it takes more than it may;
        UnavailableError where nothing can be rendered now."""
        known = self._known(owner)
        answer = self._answer(msgspec.structs.replace(question, compiled=known))
        if answer.text is None:
            raise InvalidRequestError(
                f"the chat template could not be rendered: {brief(answer.error)}", _PARAM
            )
        if known is None and owner is not None and answer.compiled is not None:
            self._keep(owner, tenant_id, answer.compiled)
        if len(answer.text) > question.characters_most:  # a process that a template took over
            raise InvalidRequestError("the chat template could not be rendered", _PARAM)
        return answer.text

    def _known(self, owner: str | None) -> bytes | None:
        with self._lock:
            return None if owner is None else self._compiled.use(owner)

    def _keep(self, owner: str, tenant_id: str, compiled: bytes) -> None:
        if len(compiled) <= COMPILED_BYTES_MAX:
            with self._lock:
                self._compiled.put(owner, compiled, tenant_id)

    def _answer(self, question: Question) -> Answer:
        try:
            raw = self._apart.ask(TEMPLATE, msgspec.msgpack.encode(question))
        except ApartUnavailableError as error:
            raise UnavailableError(
                "Chat templates cannot be rendered right now; try again.",
                code="templates_unavailable",
            ) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise InvalidRequestError(
                f"a value cannot be given to a chat template: {brief(error)}", _PARAM
            ) from error
        try:
            return msgspec.msgpack.decode(raw, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Answer(error="it takes more time or memory than a template may use")


@dataclass(frozen=True)
class AdapterTemplate:
    """A template that came with an adapter, in the place of the base model's own. `version_id`: of
    which, where it is a version's by now."""

    renderer: Renderer
    source: str
    special_tokens: Mapping[str, str]
    version_id: str | None = None
    tenant_id: str = ""
    param: str = _PARAM  # that an error names

    def render(
        self, messages: Sequence[Mapping[str, Any]], most: int = CHARACTERS_MAX, /, **arguments: Any
    ) -> str:
        """As ChatTemplate's."""
        return self._rendered(messages, most, arguments, is_open=False)

    def render_open(
        self, messages: Sequence[Mapping[str, Any]], most: int = CHARACTERS_MAX, /, **arguments: Any
    ) -> str:
        """As ChatTemplate's."""
        return self._rendered(messages, most, arguments, is_open=True)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        most: int,
        arguments: Mapping[str, Any],
        *,
        is_open: bool,
    ) -> str:
        plain = [dict(message) for message in messages]
        tokens = dict(self.special_tokens)
        question = Question(self.source, tokens, plain, dict(arguments), is_open, most)
        try:
            return self.renderer.render(question, self.version_id, self.tenant_id)
        except InvalidRequestError as error:
            error.param = self.param
            raise
