"""What one choice of a chat says, read for the tools that it calls, whole and as a stream alike."""

from __future__ import annotations

from typing import Any

from tenora_engine.text.tool_parser import ToolCallText
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

    def read(self, piece: Piece) -> list[str | ToolCallMade]:
        """Content and calls that are complete, in order."""
        if self._parser is None:
            return [piece.text]
        found = self._parser.push(piece.text)
        if piece.finish_reason is not None:
            found += self._parser.finish()
        return [each if isinstance(each, str) else self._made(each) for each in found]

    def deltas(self, piece: Piece) -> list[dict[str, Any]]:
        """The same, as a stream gives it: a call's id and name, then its arguments."""
        made: list[dict[str, Any]] = []
        index = self._calls
        for each in self.read(piece):
            if isinstance(each, str):
                made.append({"content": each})
                self._said = True
            else:
                made += _call_deltas(index, each)
                index += 1
        if piece.finish_reason is not None and not self._said and not self._calls:
            made.append({"content": ""})
        return made

    def finish_reason(self, reason: FinishReasonText) -> FinishReasonText:
        """What has called tools and ended by itself, ended for them."""
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _made(self, call: ToolCallText) -> ToolCallMade:
        assert self._tools is not None  # or there would be no parser
        self._calls += 1
        function = FunctionMade(name=call.name, arguments=call.arguments)
        return ToolCallMade(id=self._tools.new_id(), function=function)


def _call_deltas(index: int, call: ToolCallMade) -> list[dict[str, Any]]:
    name = {"name": call.function.name, "arguments": ""}
    first = {"index": index, "id": call.id, "type": call.type, "function": name}
    rest = {"index": index, "function": {"arguments": call.function.arguments}}
    return [{"tool_calls": [first]}, {"tool_calls": [rest]}]
