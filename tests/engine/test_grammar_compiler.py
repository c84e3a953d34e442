"""Compiling grammars beside the steps: once for each tenant, with limits that hold, and what comes
to a request meanwhile."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, get_args

import pytest

from guided_engine import guided_engine, request
from tenora_engine.engine import Engine
from tenora_engine.errors import (
    EngineUnavailableError,
    GrammarsUnavailableError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.events import Event, FinishEvent, TokenEvent
from tenora_engine.grammar import checker as checker_module
from tenora_engine.grammar import compiler as compiler_module
from tenora_engine.grammar.checker import NICENESS, Checker
from tenora_engine.grammar.compiler import COST_KEPT_S, TENANT_CACHED_MAX, GrammarCompiler
from tenora_engine.grammar.guide import (
    ALLOWANCE_S,
    TENANT_ALLOWANCES,
    TOO_SLOW,
    Guide,
    Vocabulary,
    next_masks,
)
from tenora_engine.grammar.reasons import sentence_of
from tenora_engine.loop import EngineLoop
from tenora_engine.request import Grammar
from tiny_folder import write_tiny_folder

PATIENCE_S = 60.0  # only a hang takes as long
HOSTILE = [
    Grammar("json_schema", '{"type": "integer", "multipleOf": 10000019}'),
    Grammar(
        "grammar",
        "start: A\nA: " + " & ".join(f"/.*{'ab' * count}.*/" for count in range(1, 40)),
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guided") / "model"
    write_tiny_folder(folder)
    return folder


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with guided_engine(folder) as engine:
        yield engine


@pytest.fixture
def compiler(engine: Engine) -> GrammarCompiler:
    return engine.grammars


def regex(number: int) -> Grammar:
    return Grammar("regex", f"a{{{number + 1}}}")


def test_one_tenant_s_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    wanted = [compiler.guides(request("one", regex(1), n=3)) for _ in range(4)]
    found = [future.result(PATIENCE_S) for future in wanted]
    found.append(compiler.guides(request("later", regex(1), n=3)).result(PATIENCE_S))
    assert compiler.num_compiled == 1
    guides = [guide for each in found for guide in each]
    assert len({id(guide.matcher) for guide in guides}) == 15
    compiler.guides(request("other", regex(1), "b")).result(PATIENCE_S)
    assert compiler.num_compiled == 2  # the other tenant does not learn that it was there


def test_a_guide_is_not_advanced_by_another_s_tokens(compiler: GrammarCompiler) -> None:
    one, other = compiler.guides(request("two", Grammar("regex", "ab"), n=2)).result(PATIENCE_S)
    [a] = one.vocabulary.tokenizer.tokenize_str("a")
    [b] = one.vocabulary.tokenizer.tokenize_str("b")
    assert one.advance(a)
    assert other.validate([b]) == 0
    assert one.validate([b]) == 1


def test_a_tenant_s_cache_is_bounded(compiler: GrammarCompiler) -> None:
    for number in range(TENANT_CACHED_MAX + 3):
        compiler.guides(request("many", regex(number))).result(PATIENCE_S)
    compiler.guides(request("last", regex(TENANT_CACHED_MAX + 2))).result(PATIENCE_S)
    assert compiler.num_compiled == TENANT_CACHED_MAX + 3
    compiler.guides(request("first", regex(0))).result(PATIENCE_S)
    assert compiler.num_compiled == TENANT_CACHED_MAX + 4


@pytest.mark.parametrize("grammar", HOSTILE, ids=["multipleOf", "intersections"])
def test_what_takes_too_long_is_refused_and_remembered(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="longer than 0"):
            compiler.guides(request("slow", grammar)).result(PATIENCE_S)
    assert compiler.num_refused == 1
    compiler.guides(request("quick", regex(1))).result(PATIENCE_S)  # by a new process


def test_who_sends_what_is_slow_delays_nobody_else(compiler: GrammarCompiler) -> None:
    """And only so much of it may wait."""
    slow = [
        compiler.guides(request("slow", Grammar("json_schema", HOSTILE[0].text + " " * number)))
        for number in range(compiler_module.WAITING_MAX + 2)
    ]
    with pytest.raises(QueueFullError):
        slow[-1].result(PATIENCE_S)
    compiler.guides(request("other", regex(1), "b")).result(PATIENCE_S)
    assert not slow[3].done()
    compiler.close()
    with pytest.raises(EngineUnavailableError):
        slow[3].result(PATIENCE_S)


def test_however_many_send_what_is_slow_another_waits_for_the_end_of_one(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun = threading.Semaphore(0), list[str]()
    compile_one = compiler._compile

    def held(grammar: Grammar, namespace: str) -> Any:
        begun.append(namespace)
        if namespace != "quick":
            assert go_on.acquire(timeout=PATIENCE_S)
        return compile_one(grammar, namespace)

    monkeypatch.setattr(compiler, "_compile", held)
    slow = [
        compiler.guides(request(f"{name}{number}", regex(number), name))
        for number in range(4)
        for name in ("s", "t", "u", "v")
    ]
    for _ in range(4):  # each has had one compiled, which took some time
        go_on.release()
    for future in slow[:4]:
        future.result(PATIENCE_S)
    while len(begun) < 4 + compiler_module.THREADS:
        time.sleep(0.001)
    quick = compiler.guides(request("quick", regex(1), "quick"))
    go_on.release()
    quick.result(PATIENCE_S)
    assert begun[4 + compiler_module.THREADS] == "quick"
    for _ in slow:
        go_on.release()
    for future in slow:
        future.result(PATIENCE_S)


def test_without_the_library_requests_are_told_so(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequestError, match="llguidance"):
        compiler.guides(request("none", regex(1))).result(PATIENCE_S)


def test_a_checker_that_was_killed_is_replaced() -> None:
    checker = Checker()
    try:
        made = checker.check(regex(1), 1.0)
        assert checker._process is not None
        checker._process.kill()
        checker._process.wait()
        assert checker.check(regex(1), 1.0) == made
    finally:
        checker.close()


class Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def take(self, events: list[Event]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def tokens(self) -> int:
        return sum(isinstance(event, TokenEvent) for event in self.events)

    def end_of(self, name: str) -> FinishEvent:
        def found() -> list[FinishEvent]:
            ends = [event for event in self.events if isinstance(event, FinishEvent)]
            return [event for event in ends if event.request_id == name]

        with self._changed:
            assert self._changed.wait_for(found, PATIENCE_S)
            return found()[0]


@pytest.fixture
def running(engine: Engine) -> Iterator[tuple[EngineLoop, Sink]]:
    sink = Sink()
    loop = EngineLoop(engine, sink.take)
    loop.start()
    yield loop, sink
    loop.stop()


def test_others_decode_while_a_grammar_is_refused(running: tuple[EngineLoop, Sink]) -> None:
    loop, sink = running
    loop.submit(request("long", None, "b", max_tokens=900)).result(PATIENCE_S)
    before = sink.tokens()
    with pytest.raises(InvalidRequestError, match="longer than"):
        loop.submit(request("slow", HOSTILE[1])).result(PATIENCE_S)
    assert sink.tokens() > before
    assert sink.end_of("long").reason in ("length", "stop")


def test_a_request_is_submitted_when_its_grammar_is_there(
    running: tuple[EngineLoop, Sink],
) -> None:
    loop, sink = running
    loop.submit(request("guided", regex(2))).result(PATIENCE_S)
    assert sink.end_of("guided").reason == "stop"


def test_what_is_aborted_meanwhile_ends_and_is_metered(
    running: tuple[EngineLoop, Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, sink = running
    held: Future[list[Guide]] = Future()
    compile_now = loop.engine.grammars.guides
    monkeypatch.setattr(loop.engine.grammars, "guides", lambda request: held)
    submitted = loop.submit(request("gone", regex(900), max_tokens=900))
    aborted = loop.abort("gone")
    assert not aborted.done()
    held.set_result(compile_now(request("gone", regex(900))).result(PATIENCE_S))
    submitted.result(PATIENCE_S)
    aborted.result(PATIENCE_S)
    assert sink.end_of("gone").reason == "abort"


def test_what_is_compiling_when_the_engine_ends_is_refused(engine: Engine) -> None:
    sink = Sink()
    loop = EngineLoop(engine, sink.take)
    loop.start()
    submitted = loop.submit(request("slow", HOSTILE[1]))
    loop.stop()
    with pytest.raises((EngineUnavailableError, InvalidRequestError)):
        submitted.result(PATIENCE_S)
    with pytest.raises(EngineUnavailableError):
        loop.submit(request("late", regex(1)))


def test_the_process_for_checks_gives_way_to_the_engine() -> None:
    """In a session of its own the kernel would give it a share of the cores like the engine's,
    whatever its niceness (autogroups): a step took five times as long beside it."""
    checker = Checker()
    try:
        checker.check(Grammar("regex", "[0-9]"), 2.0)
        assert checker._process is not None
        pid = checker._process.pid
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == pid, "Ctrl-C would reach it"
        assert os.getpriority(os.PRIO_PROCESS, pid) >= NICENESS
    finally:
        checker.close()


LIMITS = [
    Grammar("grammar", 'root ::= "a"{30000}', "guided_grammar"),
    Grammar("regex", "(a{1000}){1000}", "guided_regex"),
    Grammar("json_schema", '{"type":"string","pattern":"^(a{1000}){1000}$"}', "response_format"),
    Grammar("grammar", 'start: "<tool>" X\nX: /(a{1000}){1000}/', "tools"),
]


@pytest.mark.parametrize("grammar", LIMITS, ids=lambda grammar: grammar.param)
def test_what_no_text_can_follow_is_refused_when_it_is_compiled(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    """The library compiles it, and gives up at the first tokens, whatever they are."""
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as refused:
            compiler.guides(request("limits", grammar)).result(PATIENCE_S)
        assert refused.value.param == grammar.param
    assert compiler.num_refused == 1


@pytest.mark.parametrize(
    ("kind", "text"), [("regex", r"[^\s\S]"), ("grammar", "start: A\nA: /a/ & /b/\n")]
)
def test_a_refusal_is_a_sentence(compiler: GrammarCompiler, kind: Any, text: str) -> None:
    """Not the name of a state of the library's, nor its note to its own people."""
    refused = compiler.guides(request("r", Grammar(kind, text))).exception(PATIENCE_S)
    assert isinstance(refused, InvalidRequestError)
    assert str(refused).endswith("is not supported: there is no text that may come next")


def test_every_state_of_the_library_has_a_sentence() -> None:
    from llguidance._util import StopReason

    for state in set(get_args(StopReason)) - {"NotStopped"}:
        assert " " in sentence_of(f"{state}\n<non-verbose/>"), state
    assert sentence_of("too many items\n<non-verbose/>") == "too many items"
    assert sentence_of("")


def test_what_some_text_can_follow_is_not_refused(compiler: GrammarCompiler) -> None:
    grammar = Grammar("regex", "(a{40}){40}|b")
    [guide] = compiler.guides(request("b", grammar)).result(PATIENCE_S)
    [b] = guide.vocabulary.tokenizer.tokenize_str("b")
    assert guide.validate([b]) == 1, guide._failure()


class LostChecker(Checker):
    """Whose process is killed while it compiles, so many times."""

    def __init__(self, times: int, number: int = signal.SIGKILL) -> None:
        super().__init__()
        self.left, self.number = times, number

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any] | None:
        if self.left and process is self._process and timeout_s != checker_module._START_S:
            self.left -= 1
            process.send_signal(self.number)
            process.wait()
            return None
        return super()._answer(process, timeout_s)


def test_a_check_whose_process_is_killed_is_made_again(compiler: GrammarCompiler) -> None:
    checker = LostChecker(1)
    compiler._checker = lambda: checker  # type: ignore[method-assign]
    compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    checker.close()


def test_a_killed_process_says_nothing_about_a_grammar(compiler: GrammarCompiler) -> None:
    checker = LostChecker(2)
    compiler._checker = lambda: checker  # type: ignore[method-assign]
    with pytest.raises(GrammarsUnavailableError):
        compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    assert (compiler.num_refused, compiler.num_compiled) == (0, 1)
    checker.close()


def test_nor_does_a_process_that_cannot_be_had(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*_: object, **__: object) -> subprocess.Popen[bytes]:
        raise BlockingIOError("Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", popen)
        with pytest.raises(GrammarsUnavailableError):
            compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    assert compiler.num_refused == 0


def test_nor_does_a_failure_of_the_engine_s_own(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(vocabulary: Vocabulary, grammar: str) -> object:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "matcher", fails)
        with pytest.raises(GrammarsUnavailableError):
            compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    compiler.guides(request("one", regex(1))).result(PATIENCE_S)


def test_what_ends_its_process_twice_is_refused_for_a_while(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that has no memory left. It is looked at again later: machines differ."""
    checker = LostChecker(2, signal.SIGABRT)
    compiler._checker = lambda: checker  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="too much memory"):
            compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    assert compiler.num_refused == 1
    later_s = time.monotonic() + COST_KEPT_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    compiler.guides(request("one", regex(1))).result(PATIENCE_S)
    checker.close()


def test_no_process_is_started_for_a_closed_checker() -> None:
    checker = Checker()
    checker.close()
    with pytest.raises(GrammarsUnavailableError):
        checker.check(regex(1), 1.0)
    assert checker._process is None


@pytest.mark.parametrize(("mask_s", "is_refused"), [(0.010, True), (0.001, False)])
def test_what_would_spend_its_allowance_at_once_is_refused_when_it_is_compiled(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, mask_s: float, is_refused: bool
) -> None:
    """By the processor's time of its own thread, whatever else the machine does."""
    clock = itertools.count(0.0, mask_s)
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    future = compiler.guides(request("slow", Grammar("regex", "[a-z]{90}")))
    if is_refused:
        with pytest.raises(InvalidRequestError, match=TOO_SLOW):
            future.result(PATIENCE_S)
    else:
        assert len(future.result(PATIENCE_S)) == 1


def test_a_mask_that_cannot_be_made_is_its_own_guide_s_fault(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic of the library is no Exception."""

    class Panic(BaseException):
        pass

    class Matcher:
        def __getattr__(self, name: str) -> Any:
            def panics(*_: object) -> None:
                raise Panic

            kept = {"get_error": lambda: "", "deep_copy": lambda: self}
            return kept.get(name, panics)

    good, bad = compiler.guides(request("two", Grammar("regex", "ab"), n=2)).result(PATIENCE_S)
    [a] = good.vocabulary.tokenizer.tokenize_str("a")
    right = next_masks([good])[0]
    bad.matcher = Matcher()
    masks = next_masks([bad, good])
    assert (masks[1] == right).all()
    assert bad.error is not None
    assert good.error is None
    assert not bad.advance(a)
    assert bad.ahead([a]).error is not None
    assert bad.forced_tokens() == []
    assert bad.validate([a]) == 0


def test_who_spends_all_that_its_grammars_may_take_brings_no_new_ones(
    compiler: GrammarCompiler,
) -> None:
    """Each text has an allowance of its own, and there are as many texts as somebody writes."""
    kept = []
    for number in range(TENANT_ALLOWANCES + 1):
        [guide] = compiler.guides(request("slow", regex(number))).result(PATIENCE_S)
        kept.append(guide)
        guide.allowance.spend(ALLOWANCE_S)
    with pytest.raises(QueueFullError, match="too long") as refused:
        compiler.guides(request("new", regex(50))).result(PATIENCE_S)
    assert 1000 < refused.value.retry_after_ms < 60_000
    with pytest.raises(InvalidRequestError, match=TOO_SLOW):
        compiler.guides(request("again", regex(0))).result(PATIENCE_S)
    compiler.guides(request("other", regex(50), "b")).result(PATIENCE_S)
    assert all(guide.allowance.is_spent for guide in kept)
