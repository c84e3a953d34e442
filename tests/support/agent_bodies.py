"""Bodies of coding agents, as they send them: Codex CLI to /v1/responses (after its sources),
Claude Code to /v1/messages."""

from __future__ import annotations

from typing import Any

CODEX_SHELL: dict[str, Any] = {
    "type": "function",
    "name": "shell",
    "description": "Run a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "output_schema": {"type": "object"},
}
CODEX_TOOLS: list[dict[str, Any]] = [
    {"type": "local_shell"},
    {"type": "web_search", "external_web_access": False, "search_content_types": ["text"]},
    {"type": "image_generation", "output_format": "png"},
    {"type": "tool_search", "execution": "client", "description": "x", "parameters": {}},
    {"type": "namespace", "name": "mcp__files", "description": "x", "tools": [CODEX_SHELL]},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edit files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"},
    },
]
CODEX_HISTORY: list[dict[str, Any]] = [
    {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "You may write."}],
    },
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "List the files."}],
        "internal_chat_message_metadata_passthrough": {"turn_id": "t1"},
    },
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I look."}],
        "content": None,
        "encrypted_content": "gAAAA",
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look."}],
        "phase": "commentary",
        "end_turn": False,
    },
    {
        "type": "function_call",
        "name": "shell",
        "arguments": '{"command": ["ls"]}',
        "call_id": "c1",
        "namespace": "mcp__files",
    },
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    {
        "type": "local_shell_call",
        "call_id": "c2",
        "status": "completed",
        "action": {"type": "exec", "command": ["pwd"], "timeout_ms": None},
    },
    {"type": "function_call_output", "call_id": "c2", "output": "/tmp"},
    {
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "c3",
        "name": "apply_patch",
        "input": "*** Begin Patch",
    },
    {
        "type": "custom_tool_call_output",
        "call_id": "c3",
        "output": [{"type": "input_text", "text": "Done."}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
]


def codex_body(model: str, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "instructions": "You are a coding agent.",
        "input": CODEX_HISTORY,
        "tools": [CODEX_SHELL, *CODEX_TOOLS],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "xhigh", "summary": "auto", "context": "all"},
        "store": False,
        "stream": True,
        "stream_options": {"reasoning_summary_delivery": "sequential_cutoff"},
        "include": ["reasoning.encrypted_content"],
        "service_tier": "priority",
        "prompt_cache_key": "019a",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i", "x-codex-turn-metadata": "{}" * 400},
        "access_programs": {"cyber": True},
        **more,
    }


CLAUDE_CODE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
}


def claude_code_body(model: str, tool: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": 64,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=5f0e1;"},
            {
                "type": "text",
                "text": "You are an agent.",
                "cache_control": {"type": "ephemeral", "ttl": "1h"},
            },
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<reminder>x</reminder>"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Yes."},
                ],
            },
            {"role": "user", "content": "Go on."},
        ],
        "tools": [
            {**tool, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "user_1_account_2_session_3"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"something": "new"},
        "stream": True,
        **more,
    }
