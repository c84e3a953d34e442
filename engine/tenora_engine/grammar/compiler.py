"""GrammarCompiler: grammars of requests become guides, in threads of their own, so that no step
waits for it. What one tenant has asked for it finds again; what another has, it does not learn."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import math
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import (
    EngineError,
    EngineUnavailableError,
    GrammarsUnavailableError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.fair_cache import FairCache
from tenora_engine.grammar.checker import NICENESS, Checker, GrammarCostError, Verdict
from tenora_engine.grammar.guide import (
    SLOW_S,
    TENANT_ALLOWANCES,
    TOO_SLOW,
    Allowance,
    Guide,
    Vocabulary,
)
from tenora_engine.grammar.limits import check_size, states_bytes
from tenora_engine.request import GenerationRequest, Grammar

THREADS = 2
"""A tenant has one of them at a time: whoever sends what takes long delays nobody else."""

CACHED_BYTES = 64 * 1024**2
"""Bound on the memory of compiled grammars and refusals, lexer states included."""

ENTRY_BYTES = 128 * 1024
"""A small grammar's: 0.11 MiB were measured, by malloc, for one of a few properties."""

GRAMMAR_BYTES = 60
"""More for each byte of its text: 1.2 MiB were measured for 21 kB of three hundred properties."""

CACHED_SHARE = 7
"""Parts of CACHED_BYTES; a grammar that alone takes more than one, about 1,000 counted characters,
is not kept."""

TENANT_CACHED_MAX = 32
WAITING_MAX = 16
"""Grammars of one tenant that wait to be compiled."""

HALF_LIFE_S = 30.0
"""In which a tenant is forgiven half of the time that its grammars took."""
_SPENT_MIN_S = 0.001
"""What is less is not remembered."""

COST_KEPT_S = 60.0
"""What a grammar was seen to cost is remembered for so long: it depends on the machine, too."""

_log = logging.getLogger(__name__)

Key = tuple[str, bytes]  # namespace, digest of kind and text


@dataclass(frozen=True)
class Refusal:
    """A verdict about a grammar."""

    reason: str
    until_s: float = math.inf  # by the monotonic clock


Made = Guide | Refusal | EngineError
"""An error is no verdict: of the checker, the model's folder, the machine. It is not kept."""


@dataclass(frozen=True)
class _Asked:
    """By one request: for so many sequences, each of so many tokens at most."""

    count: int
    max_tokens: int
    future: Future[list[Guide]]


@dataclass(eq=False)
class _Job:
    key: Key
    grammar: Grammar
    asked: list[_Asked] = field(default_factory=list)


class GrammarCompiler:
    """Of one engine. All methods may be called from any thread."""

    def __init__(self, config: ResolvedConfig) -> None:
        self._config = config
        self._max_bytes = config.engine.max_grammar_bytes
        self._timeout_s = config.engine.grammar_timeout_ms / 1000
        self._lock = threading.Lock()
        self._compiled: FairCache[Key, Guide | Refusal] = FairCache(CACHED_BYTES, time.monotonic)
        self._cached: Counter[str] = Counter()  # by namespace
        # By namespace, while there are guides that draw on it.
        self._allowances: WeakValueDictionary[str, Allowance] = WeakValueDictionary()
        self._jobs: dict[Key, _Job] = {}
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by namespace
        self._busy: set[str] = set()  # namespaces of which one is being compiled
        self._spent_s: dict[str, float] = {}  # by namespace, lately
        self._halved_s = time.monotonic()
        self._pool: ThreadPoolExecutor | None = None
        self._checkers: list[Checker] = []
        self._own = threading.local()
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._closed = False
        self.num_compiled = 0
        self.num_refused = 0

    def guides(self, request: GenerationRequest) -> Future[list[Guide]]:
        """A guide for each of the request's sequences. The Future may hold InvalidRequestError (it
        is not supported, too large, or takes too long), QueueFullError, GrammarsUnavailableError or
        EngineUnavailableError."""
        sampling, grammar = request.sampling, request.sampling.grammar
        assert grammar is not None
        future: Future[list[Guide]] = Future()
        future.set_running_or_notify_cancel()
        asked = _Asked(sampling.n, sampling.max_tokens, future)
        try:
            found = self._find(grammar, request.tenant.namespace, asked)
        except Exception as error:
            future.set_exception(error)
            return future
        if found is not None:
            _give(found, grammar, asked)
        return future

    def prepare(self) -> None:
        """Read the tokenizer, for which all threads would wait later. Where there are no grammars,
        requests that ask for one are told why."""
        with contextlib.suppress(InvalidRequestError, ImportError):
            self._the_vocabulary()

    def counters(self) -> dict[str, float]:
        return {"grammars_compiled": self.num_compiled, "grammars_refused": self.num_refused}

    def close(self) -> None:
        """What is being compiled ends with EngineUnavailableError."""
        with self._lock:
            self._closed = True
            left = [asked.future for job in self._jobs.values() for asked in job.asked]
            self._jobs.clear()
            self._waiting.clear()
            pool, checkers = self._pool, list(self._checkers)
        for future in left:
            future.set_exception(EngineUnavailableError("the engine was stopped"))
        for checker in checkers:
            checker.close()
        if pool is not None:
            pool.shutdown(wait=False)

    def _find(self, grammar: Grammar, namespace: str, asked: _Asked) -> Guide | Refusal | None:
        """What is known of it; None when the future is to be told later."""
        self._check(grammar)
        key = namespace, _digest(grammar)
        with self._lock:
            if self._closed:
                raise EngineUnavailableError("the engine was stopped")
            known = self._compiled.use(key)
            if isinstance(known, Refusal) and known.until_s < time.monotonic():
                self._drop(key)
                known = None
            if isinstance(known, Guide) and known.allowance.is_spent:
                known = Refusal(TOO_SLOW)
            if known is not None:
                return known
            job = self._jobs.get(key)
            if job is None:
                self._refuse_debtor(namespace)
                line = self._waiting.get(namespace, ())
                if len(line) >= WAITING_MAX:
                    raise QueueFullError(
                        f"this tenant already has {len(line)} grammars waiting; try again later"
                    )
                job = self._jobs[key] = _Job(key, grammar)
                self._waiting.setdefault(namespace, deque()).append(job)
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(
                        THREADS, "tenora-grammar", initializer=_give_way
                    )
                self._pool.submit(self._work)
            job.asked.append(asked)
        return None

    def _refuse_debtor(self, namespace: str) -> None:
        """Raises QueueFullError where a tenant's grammars have been too slow: what a new one costs
        is seen only when it is followed."""
        allowance = self._allowances.get(namespace)
        if allowance is not None and allowance.is_spent:
            raise QueueFullError(
                "this tenant's grammars have taken too long to follow; send other ones later",
                math.ceil(allowance.spent_for_s * 1000),
            )

    def _check(self, grammar: Grammar) -> None:
        check_size(grammar, self._max_bytes)
        if importlib.util.find_spec("llguidance") is None:
            raise InvalidRequestError(
                "this engine does not support grammars: install llguidance", grammar.param
            )

    def _work(self) -> None:
        """Compile what waits, until nothing is left that may be begun."""
        while (job := self._next()) is not None:
            began_s = time.monotonic()
            made = self._compile(job.grammar, job.key[0])
            with self._lock:
                self._spend(job.key[0], time.monotonic() - began_s)
                self._busy.discard(job.key[0])
                if self._jobs.pop(job.key, None) is None:
                    return  # closed
                if not isinstance(made, EngineError):
                    self._keep(job.key, made, len(job.grammar.text))
            for asked in job.asked:
                _give(made, job.grammar, asked)

    def _next(self) -> _Job | None:
        """Of the tenant whose grammars have taken least lately: who sends few and quick ones waits
        for the end of one, however many others' wait."""
        with self._lock:
            may_begin = [each for each in self._waiting if each not in self._busy]
            if not may_begin:
                return None
            namespace = min(may_begin, key=lambda each: self._spent_s.get(each, 0.0))
            line = self._waiting.pop(namespace)
            job = line.popleft()
            if line:
                self._waiting[namespace] = line  # behind the others
            self._busy.add(namespace)
            return job

    def _spend(self, namespace: str, took_s: float) -> None:
        halvings = int((time.monotonic() - self._halved_s) / HALF_LIFE_S)
        if halvings:
            self._halved_s += halvings * HALF_LIFE_S
            left = {key: spent_s / 2**halvings for key, spent_s in self._spent_s.items()}
            self._spent_s = {key: each for key, each in left.items() if each > _SPENT_MIN_S}
        self._spent_s[namespace] = self._spent_s.get(namespace, 0.0) + took_s

    def _compile(self, grammar: Grammar, namespace: str) -> Made:
        try:
            verdict = self._checker().check(grammar, self._timeout_s)
        except GrammarCostError as error:
            return self._refused(str(error), COST_KEPT_S)
        except InvalidRequestError as error:
            return self._refused(str(error))
        except Exception as error:
            return _unknown(grammar, error)
        try:
            return self._guide(verdict, namespace)
        except InvalidRequestError as error:
            return error
        except ValueError as error:  # the library's reason
            return self._refused(f"the grammar could not be compiled: {error}")
        except Exception as error:
            return _unknown(grammar, error)
        except BaseException as error:  # a panic of the library, by what it was given
            return self._refused(f"the grammar could not be compiled: {error}", COST_KEPT_S)

    def _guide(self, verdict: Verdict, namespace: str) -> Guide | Refusal:
        """Of what the checker has passed. Where its beginning is slow some more of it is looked
        at."""
        vocabulary, started_s = self._the_vocabulary(), time.thread_time()
        matcher = vocabulary.matcher(verdict.grammar, is_plain=verdict.is_plain)
        guide = Guide(vocabulary, matcher, self._allowance(namespace))
        guide.hints, guide.characters = verdict.hints, verdict.characters
        guide.least_tokens = vocabulary.least_tokens(verdict.least)
        if time.thread_time() - started_s > SLOW_S and guide.is_too_slow():
            return self._refused(TOO_SLOW, COST_KEPT_S)
        self.num_compiled += 1
        return guide

    def _allowance(self, namespace: str) -> Allowance:
        """Of a new grammar."""
        with self._lock:
            of_all = self._allowances.get(namespace)
            if of_all is None:
                of_all = self._allowances[namespace] = Allowance(times=TENANT_ALLOWANCES)
        return Allowance(tenant=of_all)

    def _refused(self, reason: str, for_s: float = math.inf) -> Refusal:
        self.num_refused += 1
        return Refusal(reason, time.monotonic() + for_s)

    def _checker(self) -> Checker:
        checker: Checker | None = getattr(self._own, "checker", None)
        if checker is None:
            checker = self._own.checker = Checker()
            with self._lock:
                self._checkers.append(checker)
        return checker

    def _the_vocabulary(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                model, engine = self._config.model, self._config.engine
                self._vocabulary = Vocabulary(
                    Path(engine.model), model.vocab, model.eos_token_ids, engine.threads
                )
            return self._vocabulary

    def _keep(self, key: Key, made: Guide | Refusal, length: int) -> None:
        """Keep it; what goes is of a tenant beyond its share, least recently used first. One whose
        states would be too large goes with those who follow it: they are its own."""
        namespace, size = key[0], ENTRY_BYTES
        if isinstance(made, Guide):
            size += GRAMMAR_BYTES * length + states_bytes(made.characters)
        if size > CACHED_BYTES // CACHED_SHARE:
            return
        if key not in self._compiled:
            self._cached[namespace] += 1
        for gone in self._compiled.put(key, made, namespace, size):
            self._uncount(gone)
        if self._cached[namespace] > TENANT_CACHED_MAX:
            self._drop(next(each for each in self._compiled if each[0] == namespace))

    def _drop(self, key: Key) -> None:
        self._compiled.remove(key)
        self._uncount(key)

    def _uncount(self, key: Key) -> None:
        self._cached[key[0]] -= 1
        if not self._cached[key[0]]:
            del self._cached[key[0]]


def _digest(grammar: Grammar) -> bytes:
    text = f"{grammar.kind} {grammar.text}".encode(errors="surrogatepass")
    return hashlib.sha256(text).digest()


def _unknown(grammar: Grammar, error: BaseException) -> GrammarsUnavailableError:
    if isinstance(error, GrammarsUnavailableError):
        return error
    _log.error("a grammar of %d characters is not known", len(grammar.text), exc_info=error)
    return GrammarsUnavailableError(f"the grammar could not be compiled: {error}")


def _give(made: Made, grammar: Grammar, asked: _Asked) -> None:
    if isinstance(made, Guide) and made.least_tokens > asked.max_tokens:
        error = InvalidRequestError(
            "the JSON schema's minItems, minLength or minProperties need answers of "
            f"{made.least_tokens} tokens or more, and this request allows {asked.max_tokens}: use "
            "smaller ones, or raise max_tokens",
            grammar.param,
        )
        asked.future.set_exception(error)
    elif isinstance(made, Guide):
        try:
            guides = [made.begin(grammar) for _ in range(asked.count)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library's panics are no Exception
            asked.future.set_exception(_unknown(grammar, error))
        else:
            asked.future.set_result(guides)
    elif isinstance(made, Refusal):
        asked.future.set_exception(InvalidRequestError(made.reason, grammar.param))
    else:
        asked.future.set_exception(made)


def _give_way() -> None:
    """The calling thread alone gets the less of a core that others want: so it is on Linux."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
