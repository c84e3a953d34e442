"""Grammars are compiled in a process apart before they are in the engine's: a compilation cannot be
ended from outside, and some would take minutes, or all memory. Here what users wrote becomes the
library's own form, or the reason why it does not."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from tenora_engine.errors import GrammarsUnavailableError, InvalidRequestError
from tenora_engine.grammar.counts import check_counts, check_schema, counted_characters, read
from tenora_engine.grammar.followed import followed
from tenora_engine.grammar.hints import Hints, hints_of
from tenora_engine.grammar.lark_counts import is_gbnf
from tenora_engine.grammar.least import NOTHING, Least, least_of
from tenora_engine.grammar.limits import (
    CHECK_MEMORY_BYTES,
    EXPRESSION_CHARACTERS_MAX,
    ITEM_SEPARATOR,
    KEY_SEPARATOR,
    parser_limits,
)
from tenora_engine.grammar.reasons import reason_of, sentence_of
from tenora_engine.grammar.schemas import has_expressions, schemas_in
from tenora_engine.printable import brief
from tenora_engine.priority import stand_behind
from tenora_engine.request import Grammar
from tenora_engine.text.tool_grammar import tool_before

NICENESS = 10
"""Of what compiles: it gets a tenth of what a step gets of a core that both want."""

FORCED_BYTES_MAX = 64
FEW_BYTES = 8
"""A grammar's beginning is followed as far while there is no choice, and where there are no more
ways than these, each: the library meets some of its limits only there, whatever comes next."""

_START_S = 30.0  # for the process to be there
_WALL_FACTOR = 10  # of real time for processor time, on a busy machine
_LENGTH_BYTES = 4
_OWN_ENDS = (1, *(-number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)))
"""How a process ends by what it compiles: of memory, of which the stack is a part."""
_NO_ANSWER = 0  # in time
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A grammar that may be followed, `grammar` in the library's own form, and what it needs."""

    grammar: str
    characters: int = 0  # that it counts
    is_plain: bool = False  # a JSON schema without expressions of its own
    hints: Hints | None = None  # of a JSON schema
    least: Least = NOTHING


class ToolSchemaError(ValueError):
    """A fault in the parameters of one tool, with its name."""


class GrammarCostError(InvalidRequestError):
    """What a grammar was seen to cost, which on another day may be a little less."""


class Checker:
    """A process that compiles one grammar after the other, for one thread. It is started when it is
    first needed, and again after it had to be killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def check(self, grammar: Grammar, timeout_s: float) -> Verdict:
        """Read and compile a grammar. Raises InvalidRequestError when it is none, or is not
        supported; GrammarCostError when it takes more processor time than that, or too much memory
        in a process of its own; GrammarsUnavailableError when the process could not be had, was
        lost to something else, or got no processor time."""
        for is_last in (False, True):
            answer, status = self._ask(grammar, timeout_s)
            if answer is not None and "error" in answer:
                raise InvalidRequestError(answer["error"], grammar.param)
            if answer is not None and "grammar" in answer:
                return _verdict(answer)
            self._end_process()  # it may have been short of memory for those before this one
            if status == -signal.SIGPROF:
                cost = f"longer than {timeout_s:g} s"
                raise GrammarCostError(f"the grammar takes {cost} to compile", grammar.param)
            if is_last and (answer is not None or status in _OWN_ENDS):
                raise GrammarCostError(
                    "the grammar takes too much memory to compile", grammar.param
                )
            if status == _NO_ANSWER:
                break
        raise GrammarsUnavailableError("grammars cannot be checked at the moment; try again")

    def close(self) -> None:
        """No process is started after this."""
        self._closed = True
        self._end_process()

    def _ask(self, grammar: Grammar, timeout_s: float) -> tuple[dict[str, Any] | None, int | None]:
        """The answer; else how the process ended, None where there is none."""
        question = {"kind": grammar.kind, "text": grammar.text, "cpu_s": timeout_s}
        try:
            process = self._started()
            assert process.stdin is not None
            _write(process.stdin, question)
            answer = self._answer(process, _WALL_FACTOR * timeout_s)
        except (OSError, ValueError, MemoryError) as error:  # or it has just ended
            if not self._closed:
                _log.warning("grammars cannot be checked: %s", error)
            return None, None
        if answer is not None:
            return answer, None
        status = process.poll()
        return None, _NO_ANSWER if status is None else status

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # of what it was still to be told
                        pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end_process()
        if self._closed:
            raise ChildProcessError("it is closed")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tenora_engine.grammar.checker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1"},
            # Who ends the engine with Ctrl-C means the engine. In a session of its own it would
            # have a share of the cores of its own (autogroups), whatever its niceness.
            process_group=0,
        )
        if self._answer(self._process, _START_S) is None:
            self._end_process()
            raise ChildProcessError("no process for it could start")
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any] | None:
        """None: it has ended, or has not answered in time."""
        assert process.stdout is not None
        number, until_s = process.stdout.fileno(), time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(number, select.POLLIN)
        found = b""
        while True:
            if not poll.poll(max(until_s - time.monotonic(), 0.0) * 1000):
                return None
            part = os.read(number, 1 << 20)
            if not part:
                process.wait(_START_S)
                return None
            found += part
            length = int.from_bytes(found[:_LENGTH_BYTES], "little")
            if len(found) >= _LENGTH_BYTES and len(found) == _LENGTH_BYTES + length:
                return dict(json.loads(found[_LENGTH_BYTES:]))


def _verdict(answer: dict[str, Any]) -> Verdict:
    """See `_answer_to`."""
    hints = answer["hints"]
    if hints is not None:
        keys, values = (tuple(map(_bytes_of, hints[name])) for name in ("keys", "values"))
        hints = Hints(keys, values, hints["depth"])
    return Verdict(
        answer["grammar"],
        answer["characters"],
        answer["is_plain"],
        hints,
        Least(*answer["least"]),
    )


def _bytes_of(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _write(pipe: IO[bytes], message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    pipe.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    pipe.flush()


def compile_text(kind: str, text: str) -> str:
    """In the library's own form, compiled once, for bytes as tokens. Raises ValueError with the
    reason why it cannot be."""
    return _named(kind, followed(kind, text, _compiles))


def _named(kind: str, text: str) -> str:
    """Compile it. Raises ToolSchemaError where the reason against it lies in one tool's schema."""
    try:
        return _compiled(kind, text)
    except ValueError:
        for begin, _, schema in schemas_in(text) if kind == "grammar" else ():
            tool = tool_before(text[:begin])
            reason = None if tool is None else _reason_against(schema)
            if reason is not None:
                said = f"the parameters of the tool {tool!r} are not supported: {reason}"
                raise ToolSchemaError(said) from None
        raise


def _reason_against(schema: Any) -> str | None:
    try:
        check_schema(schema)
        _follow(_matcher_of(schema))
    except ValueError as error:
        return sentence_of(str(error))
    return None


def _compiled(kind: str, text: str) -> str:
    from llguidance import LLMatcher, grammar_from

    check_counts(kind, text)
    if kind == "json_schema":
        made = LLMatcher.grammar_from_json_schema(
            text,
            defaults={
                "whitespace_flexible": False,
                "key_separator": KEY_SEPARATOR,
                "item_separator": ITEM_SEPARATOR,
            },
            overrides={"lenient": False},
        )
    else:
        if kind == "choice":
            _check_choices(json.loads(text))
        form = "lark" if kind == "grammar" and not is_gbnf(text) else kind
        made = grammar_from(form, text)  # type: ignore[arg-type]  # the kinds are a part of its
    matcher = LLMatcher(_bytes(), made, log_level=0, limits=parser_limits())
    _follow(matcher)
    return made


def _compiles(schema: Any) -> bool:
    """Whether the library takes a schema with the options that it has itself."""
    try:
        _follow(_matcher_of(schema))
    except ValueError:
        return False
    return True


def _matcher_of(schema: Any) -> Any:  # llguidance.LLMatcher
    from llguidance import LLMatcher

    made = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    return LLMatcher(_bytes(), made, log_level=0, limits=parser_limits())


def _follow(matcher: Any) -> None:
    """Raises ValueError where the library gives up whatever comes next."""
    matcher.compute_ff_tokens()  # as the engine does, which has limits of its own
    for _ in range(FORCED_BYTES_MAX):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise ValueError(reason_of(matcher))
        allowed = _few_of(mask)
        if not allowed or matcher.is_accepting():
            return
        ways = [matcher] if len(allowed) == 1 else [matcher.deep_copy() for _ in allowed]
        right = [way.consume_token(token_id) for way, token_id in zip(ways, allowed, strict=True)]
        if not any(right):
            raise ValueError(reason_of(ways[0]))
        if len(allowed) > 1:
            return


def _few_of(mask: bytes) -> list[int]:
    """The tokens that it allows; none where they are more than FEW_BYTES."""
    bits = int.from_bytes(mask, "little")
    if bits.bit_count() > FEW_BYTES:
        return []
    return [token_id for token_id in range(8 * len(mask)) if bits >> token_id & 1]


@cache
def _bytes() -> Any:  # llguidance.LLTokenizer
    from llguidance import LLTokenizer

    return LLTokenizer("byte")  # 1.5 ms


def _check_choices(choices: Any) -> None:
    if not isinstance(choices, list) or not choices or not all(choices):
        raise ValueError("they must be a list of texts, none of them empty")
    if not all(isinstance(choice, str) for choice in choices):
        raise ValueError("each must be a text")


_WORDS = {
    "json_schema": "the JSON schema is not supported",
    "regex": "the regular expression is not supported",
    "choice": "the choices are not supported",
    "grammar": "the grammar is not supported",
}


def _answer_to(question: dict[str, Any]) -> dict[str, Any]:
    kind = question["kind"]
    try:
        text = followed(kind, question["text"], _compiles)
        return {"grammar": _named(kind, text), **_counted(kind, text)}
    except ToolSchemaError as error:
        return {"error": brief(str(error))}
    except MemoryError:
        return {"memory": "too little"}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's, of whatever class: its panics are no Exception
        reason = brief(sentence_of(str(error)))
        return {"error": f"{_WORDS[kind]}: {reason}"}


def _counted(kind: str, text: str) -> dict[str, Any]:
    """Return the other fields of a Verdict, as JSON."""
    found: dict[str, Any] = {
        "characters": counted_characters(kind, text),
        "is_plain": False,
        "hints": None,
        "least": (0, 0),
    }
    if kind == "json_schema":
        schema = read(text)
        hints, least = hints_of(schema), least_of(schema)
        found["hints"] = {
            "keys": [key.decode(errors="surrogatepass") for key in hints.keys],
            "values": [value.decode(errors="surrogatepass") for value in hints.values],
            "depth": hints.depth,
        }
        found |= {
            "is_plain": not has_expressions(schema),
            "least": (least.num_bytes, least.commas),
        }
    if not found["is_plain"]:
        found["characters"] = min(found["characters"], EXPRESSION_CHARACTERS_MAX)
    return found


def main() -> None:
    """Answer questions of standard input until it ends."""
    _bytes()  # before memory is bounded
    stand_behind(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (CHECK_MEMORY_BYTES, CHECK_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    _write(stdout, {})
    while head := stdin.read(_LENGTH_BYTES):
        question = json.loads(stdin.read(int.from_bytes(head, "little")))
        # The signal ends the process, whatever code it is in.
        signal.setitimer(signal.ITIMER_PROF, question["cpu_s"])
        answer = _answer_to(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(stdout, answer)


if __name__ == "__main__":
    main()
