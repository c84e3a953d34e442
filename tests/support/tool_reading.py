"""What a parser of tools says, put together: content as text, and each call as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenora_engine.text.tool_parser import ToolCallStart, ToolParser


class Call(NamedTuple):
    name: str
    arguments: str
    is_complete: bool = True


def read(parser: ToolParser, pieces: Iterable[str]) -> list[str | Call]:
    """Adjacent texts are one, as are the pieces of a call's arguments."""
    said: list[str | Call] = []
    for each in [each for piece in pieces for each in parser.push(piece)] + parser.finish():
        last = said[-1] if said else None
        if isinstance(each, ToolCallStart):
            said.append(Call(each.name, "", is_complete=False))
        elif not isinstance(each, str):
            assert isinstance(last, Call)
            assert not last.is_complete
            assert each.text or each.is_last
            said[-1] = Call(last.name, last.arguments + each.text, each.is_last)
        elif isinstance(last, str):
            said[-1] = last + each
        else:
            said.append(each)
    return said
