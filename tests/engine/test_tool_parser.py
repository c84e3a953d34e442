"""Calls of tools in text: against a reader of whole texts, and the same however the text is cut."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora_engine.text.json_scan import JsonScan
from tenora_engine.text.tool_formats import FORMATS, ToolFormat
from tenora_engine.text.tool_parser import ToolCallArguments, ToolParser
from tool_reading import Call
from tool_reading import read as read_pieces

TOOLS = ("add", "get_weather")
Said = list[str | Call]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
arguments = st.dictionaries(st.sampled_from(["a", "ö", '}"', "<tool_call>", "\\"]), json_values)


@st.composite
def calls(draw: st.DrawFn, form: ToolFormat) -> str:
    """One or two, mostly good: as they are written, with the form's marks about them."""
    made = []
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(["arguments", "arguments", "parameters", "args"]))
        members = {
            "name": draw(st.sampled_from([*TOOLS, *TOOLS, *TOOLS, "nobody"])),
            key: draw(arguments | arguments | json_values),
            "id": draw(st.integers(0, 2) | arguments),
        }
        order = (
            ["name", key],
            ["name", key],
            ["name", "id", key],
            ["name", key, "id"],
            [key, "name"],
        )
        made.append({each: members[each] for each in draw(st.sampled_from(order))})
    indent = draw(st.sampled_from([None, 1]))
    given: Any = made[0] if len(made) == 1 and draw(st.booleans()) else made
    text = json.dumps(given, ensure_ascii=draw(st.booleans()), indent=indent)
    if draw(st.booleans()):  # broken, or cut off: often within the arguments
        places = st.integers(0, len(text)) | st.integers(min(30, len(text)), len(text))
        cut, end = draw(places), draw(places)
        marks = [form.closing, form.opening, "", "}", "]", '"', "!", ", "]
        text = text[:cut] + draw(st.sampled_from(marks)) + text[cut:]
        text = text[:end] if draw(st.booleans()) else text
    spaces = st.sampled_from(["", "\n", " ; "])
    opening = draw(st.sampled_from([form.opening, form.opening, form.opening, ""]))
    closing = draw(st.sampled_from([form.closing, form.closing, "", "</tool_"]))
    return opening + draw(spaces) + text + draw(spaces) + closing


@st.composite
def answers(draw: st.DrawFn) -> tuple[ToolFormat, str, list[str]]:
    """A form, an answer, and the answer in pieces."""
    form = draw(st.sampled_from(list(FORMATS.values())))
    words = st.sampled_from(
        ["", " ", "Hi, ", "日本 👩‍🚀\n", "<tool", "{", "[TOOL_", "<|", "; ", '"']
    )
    text = "".join(draw(st.lists(words | calls(form), max_size=5)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    return form, text, pieces


def read(
    form: ToolFormat, pieces: Sequence[str], parallel: bool = True, forced: bool = False
) -> Said:
    return read_pieces(ToolParser(form, TOOLS, parallel, forced), pieces)


@given(answers(), st.booleans(), st.booleans())
def test_a_stream_is_what_the_whole_is(
    answer: tuple[ToolFormat, str, list[str]], parallel: bool, forced: bool
) -> None:
    form, text, pieces = answer
    whole = read(form, [text], parallel, forced)
    assert read(form, pieces, parallel, forced) == whole
    assert read(form, list(text), parallel, forced) == whole
    assert all(call.arguments in text for call in whole if isinstance(call, Call))
    if all(isinstance(each, str) for each in whole) and "[" not in text and not forced:
        assert "".join(map(str, whole)) == text  # nothing was taken for a call: nothing is missing


def reference(form: ToolFormat, text: str) -> Iterator[str | Call]:
    """Of a whole text, with regular expressions and the standard library's reader of JSON."""
    said = False
    behind = 0
    while text:
        lead = text.lstrip(SPACE + (form.separator if behind else ""))
        if form.bare and not said and lead.startswith("{"):
            before, mark, rest = text[: len(text) - len(lead)], "{", lead[1:]
            found = _calls(form, lead)
        else:
            before, mark, rest = text.partition(form.opening)
            found = _calls(form, rest) if mark else None
        said = said or bool(before.strip(SPACE + (form.separator if behind else "")))
        yield before
        if found is None:
            yield mark
            text, said, behind = rest, said or bool(mark), 0
            continue
        made, text = found
        yield from made
        closed = text.lstrip(SPACE)
        if form.closing and closed.startswith(form.closing):
            text = closed[len(form.closing) :]
        behind = 0 if said else 1


def _calls(form: ToolFormat, text: str) -> tuple[list[Call], str] | None:
    """Those that an answer begins with, and what is behind them; None for none."""
    text = text.lstrip(SPACE)
    is_list = text.startswith("[")
    if is_list and (empty := re.match(r"\[\s*\]", text)):
        return [], text[empty.end() :]
    made: list[Call] = []
    separator = re.compile(r"\[?\s*")
    while (begins := separator.match(text)) and (one := _call(form, text[begins.end() :])):
        made.append(one[0])
        text = one[1]
        if not is_list:
            break
        if ended := re.match(r"\s*\]", text):
            return made, text[ended.end() :]
        separator = re.compile(r"\s*,\s*")
    return (made, text) if made else None


SPACE = " \t\r\n"
HEAD = re.compile(r'\{(?:[^][{}"]|"(?:[^"\\]|\\.)*")*(?=\{)', re.DOTALL)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|</tool_call>|.', re.DOTALL)


def _call(form: ToolFormat, text: str) -> tuple[Call, str] | None:
    """One, and what is behind it. If its name is first its arguments may be anything."""
    head = HEAD.match(text)
    begun = _members(f"{head[0]}{{}}}}") if head else None
    if head is None or begun is None or list(begun[1].values())[-1] != {}:
        return _complete(text)
    depth = 0
    for token in TOKEN.finditer(text, head.end()):
        depth += (token[0] in "{[") - (token[0] in "}]")
        if token[0] == form.closing:
            made = Call(begun[0], text[head.end() : token.start()])
            return made, text[token.start() :]
        if not depth:
            made = Call(begun[0], text[head.end() : token.end()])
            return made, _behind_members(text[token.end() :])
    return Call(begun[0], text[head.end() :], is_complete=False), ""


def _complete(text: str) -> tuple[Call, str] | None:
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    read = _members(text[:end])
    if read is None:
        return None
    given = [read[1][key] for key in ("arguments", "parameters") if key in read[1]]
    return Call(read[0], json.dumps(given[0])), text[end:]


def _members(text: str) -> tuple[str, dict[str, Any]] | None:
    """With the tool's name; None if it names none, or has no arguments."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or not value or value.get("name") not in TOOLS:
        return None
    values = [value[key] for key in ("arguments", "parameters") if key in value]
    return (value["name"], value) if len(values) == 1 and isinstance(values[0], dict) else None


def _behind_members(text: str) -> str:
    """Behind the rest of an object, if its brackets end it before anything that is not in JSON."""
    lead = text.lstrip(SPACE)
    depth = 1 if lead.startswith((",", "}")) else 0
    for token in TOKEN.finditer(lead) if depth else ():
        depth += (token[0] in "{[") - (token[0] in "}]")
        if not depth:
            return lead[token.end() :]
        if not re.fullmatch(r'(?s:"(?:[^"\\]|\\.)*")|[][{}:,+.0-9eEtrufalsn \t\r\n-]', token[0]):
            break
    return text


@given(answers())
def test_calls_are_those_of_a_reader_of_whole_texts(
    answer: tuple[ToolFormat, str, list[str]],
) -> None:
    form, text, pieces = answer
    expected = list(reference(form, text))
    got = read(form, pieces)
    assert _values(got) == _values(expected)
    content = "".join(each for each in got if isinstance(each, str))
    wanted = "".join(each for each in expected if isinstance(each, str))
    assert _bare(content, form) == _bare(wanted, form)


def _values(said: Sequence[str | Call]) -> list[Any]:
    """The calls, with their arguments' values where they are JSON."""
    made: list[Any] = []
    for call in said:
        if isinstance(call, Call):
            try:
                made.append((call.name, json.loads(call.arguments)))
            except ValueError:
                made.append(call)
    return made


def _bare(text: str, form: ToolFormat) -> str:
    """Without what may stand about calls."""
    return "".join(letter for letter in text if letter not in SPACE + form.separator)


CALL = '{"name": "add", "arguments": {"a": 1.50, "b": "}<tool_call>"}}'
MADE = Call("add", '{"a": 1.50, "b": "}<tool_call>"}')
OPEN = CALL[:-1]  # without the object's end


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", [MADE]),
        ("hermes", f"Let me.\n<tool_call>{CALL}</tool_call>\n", ["Let me.", MADE]),
        ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}", [MADE, MADE]),
        ("hermes", f"<tool_call>{CALL}</tool_call> Done. ", [MADE, " Done. "]),
        ("hermes", "<tool_call>{oops</tool_call>", ["<tool_call>{oops</tool_call>"]),
        ("hermes", CALL, [CALL]),
        ("smollm", f"<tool_call>[{CALL}, {CALL}]</tool_call>", [MADE, MADE]),
        ("smollm", "<tool_call>[]</tool_call>", []),
        ("mistral", f"[TOOL_CALLS] [{CALL}]", [MADE]),
        ("llama3", CALL.replace("arguments", "parameters"), [MADE]),
        ("llama3", f"<|python_tag|>{CALL}; {CALL}", [MADE, MADE]),
        ("llama3", f"It is {CALL}", [f"It is {CALL}"]),
        ("llama3", '{"name": "nobody"} ', ['{"name": "nobody"} ']),
        # arguments as they are, if they are no JSON
        ("hermes", f"<tool_call>{OPEN}</tool_call> So.", [MADE, " So."]),
        ("hermes", f"<tool_call>{OPEN}, 7", [MADE, ", 7"]),
        ("hermes", f'<tool_call>{OPEN}, "id": [1]}}\n', [MADE]),
        ("hermes", f"<tool_call>{CALL[:50]}", [Call("add", CALL[29:50], is_complete=False)]),
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": {a: 1</tool_call> So.',
            [Call("add", "{a: 1"), " So."],
        ),
        ("mistral", f'[TOOL_CALLS] [{CALL}, {{"name": "x"}}]', [MADE, ', {"name": "x"}]']),
        ("mistral", f'[TOOL_CALLS] [{{"name": "x"}}, {CALL}]', None),
        # nothing is known before it is complete
        ("hermes", '<tool_call>{"arguments": {}, "name": "add"}', [Call("add", "{}")]),
        ("hermes", '<tool_call>{"arguments": {}, "name": "ad', None),
    ],
)
def test_forms(form: str, text: str, said: Said | None) -> None:
    """None: all of it is content."""
    assert read(FORMATS[form], [text]) == ([text] if said is None else said)
    assert read(FORMATS[form], list(text)) == ([text] if said is None else said)


ARGUMENTS = '{"city": "Köln", "days": [1, {}]}'
FORCED = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": #}\n</tool_call>',
    "smollm": '<tool_call>[{"name": "add", "arguments": #}]</tool_call>',
    "llama3": '{"name": "add", "parameters": #}',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": #}]',
}


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_come_letter_by_letter(name: str) -> None:
    parser = ToolParser(FORMATS[name], TOOLS)
    made = [parser.push(letter) for letter in FORCED[name].replace("#", ARGUMENTS)]
    pieces = [each.text for some in made for each in some if isinstance(each, ToolCallArguments)]
    assert pieces == list(ARGUMENTS)
    first = next(place for place, some in enumerate(made) if some)
    assert first == FORCED[name].index("#")
    assert all(made[first : first + len(ARGUMENTS)])


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_call_is_one_wherever_it_is_cut(name: str) -> None:
    head = FORCED[name].index("#")
    text = FORCED[name].replace("#", ARGUMENTS)
    for tools in (["add"], TOOLS):
        for end in range(len(text) + 1):
            given = ARGUMENTS[: max(0, end - head)]
            expected = [Call("add", given, given == ARGUMENTS)]
            if end <= head:  # a name without arguments
                expected = []
            parser = ToolParser(FORMATS[name], tools, parallel=False, forced=True)
            assert read_pieces(parser, [text[:end]]) == expected


def test_where_calls_are_not_parallel_the_first_is_all() -> None:
    text = f"Well. <tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call> Done."
    assert read(FORMATS["hermes"], [text], parallel=False) == ["Well.", MADE]
    assert read(FORMATS["smollm"], [f"<tool_call>[{CALL},{CALL}]"], parallel=False) == [MADE]


@pytest.mark.parametrize(
    "text", ['<tool_call>{"', "<tool_call>[", '<tool_call>["\\"', "{[" * 9, '<tool_call>{"a":[']
)
def test_openings_without_end_take_time_by_their_length(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    to_bracket = JsonScan.to_bracket

    def counted(self: JsonScan, rest: str) -> bool:
        nonlocal looked_at
        before = self.at
        found = to_bracket(self, rest)
        looked_at += self.at - before
        return found

    monkeypatch.setattr(JsonScan, "to_bracket", counted)
    parser = ToolParser(FORMATS["hermes"], TOOLS)
    long = text * 2000
    assert "".join(map(str, parser.push(long) + parser.finish())) == long
    assert looked_at <= 3 * len(long)
