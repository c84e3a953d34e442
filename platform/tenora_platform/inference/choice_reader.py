"""What one choice of a chat says, read for the tools that it calls, whole and as a stream alike."""

from __future__ import annotations

from typing import Any

from tenora_engine.text.tool_parser import Said, ToolCallArguments, ToolCallStart
from tenora_platform.inference.generation import Piece
from tenora_platform.inference.schemas import FinishReasonText
from tenora_platform.inference.session import InferenceSession
from tenora_platform.inference.tool_schemas import FunctionMade, ToolCallMade
from tenora_platform.inference.tools import ToolUse


def readers_of(session: InferenceSession) -> list[ChoiceReader]:
    """One for each choice of a chat."""
    generation = session.prompts[0].generation
    return [ChoiceReader(generation.tools) for _ in range(generation.sampling.n)]


class ChoiceReader:
    """Of a choice without tools (None) it gives the texts as they are."""

    def __init__(self, tools: ToolUse | None) -> None:
        self._tools = tools
        self._parser = tools.parser() if tools is not None else None
        self._calls = 0
        self._said = False

    @property
    def reads_nothing(self) -> bool:
        return self._parser is None

    @property
    def no_content(self) -> str | None:
        """What a stream says of the content before there is any."""
        return "" if self._parser is None else None

    def read(self, piece: Piece) -> list[str | ToolCallMade | ToolCallArguments]:
        """Content and calls in order: a call without its arguments, then these as they come."""
        if self._parser is None:
            return [piece.text]
        found = self._parser.push(piece.text)
        if piece.finish_reason is not None:
            found += self._parser.finish()
        return [self._made(each) for each in found]

    def deltas(self, piece: Piece) -> list[dict[str, Any]]:
        """The same, as a stream gives it."""
        made: list[dict[str, Any]] = []
        index = self._calls - 1
        for each in self.read(piece):
            if isinstance(each, str):
                made.append({"content": each})
                self._said = True
            elif isinstance(each, ToolCallMade):
                index += 1
                made.append({"tool_calls": [{"index": index, **each.model_dump()}]})
            elif each.text:
                more = {"index": index, "function": {"arguments": each.text}}
                made.append({"tool_calls": [more]})
        if piece.finish_reason is not None and not self._said and not self._calls:
            made.append({"content": ""})
        return made

    def finish_reason(self, reason: FinishReasonText) -> FinishReasonText:
        """What has called tools and ended by itself, ended for them."""
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _made(self, each: Said) -> str | ToolCallMade | ToolCallArguments:
        if not isinstance(each, ToolCallStart):
            return each
        assert self._tools is not None  # or there would be no parser
        self._calls += 1
        function = FunctionMade(name=each.name, arguments="")
        return ToolCallMade(id=self._tools.new_id(), function=function)
