"""Tools for a chat template that knows none: the tools, the calls made so far and what they gave
are written into the messages, in the words that Hermes and Qwen are trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tenora_engine.text.tool_formats import takes_tool_messages

Message = Mapping[str, Any]

_SECTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def in_words(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, source: str
) -> Sequence[Message]:
    """The same conversation in messages that the template `source` renders."""
    if not takes_tool_messages(source):
        messages = _plain_history(messages)
    if not tools:
        return messages
    section = _SECTION.format(tools="\n".join(map(_json, tools)))
    if messages and messages[0].get("role") == "system":
        system = {**messages[0], "content": f"{messages[0]['content']}\n\n{section}"}
        return [system, *messages[1:]]
    return [{"role": "system", "content": section}, *messages]


def _plain_history(messages: Sequence[Message]) -> Sequence[Message]:
    if not any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
        return messages
    plain: list[Message] = []
    answers: list[str] | None = None  # of tools, one after another: one message of the user's
    for message in messages:
        if message.get("role") == "tool":
            answer = f"<tool_response>\n{message['content']}\n</tool_response>"
            if answers is None:
                answers = []
            else:
                plain.pop()
            answers.append(answer)
            plain.append({"role": "user", "content": "\n".join(answers)})
            continue
        answers = None
        plain.append(_with_calls(message) if message.get("tool_calls") else message)
    return plain


def _with_calls(message: Message) -> Message:
    calls = [
        "<tool_call>\n"
        + _json({"name": call["function"]["name"], "arguments": call["function"]["arguments"]})
        + "\n</tool_call>"
        for call in message["tool_calls"]
    ]
    texts = [message["content"]] if message.get("content") else []
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": "\n".join([*texts, *calls])}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
